from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rolecast.cli.deploy import app
from rolecast.errors import InputError

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize(
    ("kind", "spec", "golden"),
    [("pytorchjob", "learner", "pytorchjob"), ("trainjob", "learner", "trainjob"), ("inferenceservice", "agent", "agent")],
)
def test_deploy_render_prints_the_manifests(kind: str, spec: str, golden: str) -> None:
    result = CliRunner().invoke(app, ["render", "--kind", kind, "--spec", str(GOLDEN / "specs" / f"{spec}.yaml")])
    assert result.exit_code == 0, result.output
    assert result.output == (GOLDEN / f"{golden}.yaml").read_text()


def test_keys_can_be_set_on_the_command_line_alone() -> None:
    keys = ["run=s3://store/runs/a", "stage=sft", "image=i:1", "nodes=3", "deadlines.running=60", "node_selector={zone: a}"]
    result = CliRunner().invoke(app, ["render", "--kind", "pytorchjob", *(part for key in keys for part in ("--set", key))])
    (job,) = yaml.safe_load_all(result.output)
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
    assert job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["nodeSelector"] == {"zone": "a"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (["--set", "nodes"], "override 'nodes': write key.sub=value"),
        (["--set", "run=a", "--set", "run.x=1"], "override 'run.x=1': run is a value"),
        (["--spec", "FILE"], "FILE: key 'nodes' is given twice, again in line 3"),
        (["--spec", "FILE.absent"], "no such spec file"),
    ],
)
def test_a_bad_spec_is_named(tmp_path: Path, spec: list[str], said: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("nodes: 1\nrun: a\nnodes: 2\n")
    result = CliRunner().invoke(app, ["render", "--kind", "pytorchjob", *(word.replace("FILE", str(file)) for word in spec)])
    assert isinstance(result.exception, InputError)
    assert said.replace("FILE", str(file)) in str(result.exception)
