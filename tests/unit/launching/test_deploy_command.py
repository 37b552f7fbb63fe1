from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rolecast.cli.deploy import app
from rolecast.errors import InputError
from rolecast.launching.render import read_values

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


@pytest.mark.parametrize(("override", "message"), [("nodes", "KEY=VALUE"), ("run.x=1", "run is no mapping"), ("labels={", "not YAML")])
def test_a_bad_override_is_named(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_values(None, ["run=a", override])


@pytest.mark.parametrize(("text", "message"), [("- a", "mapping"), ("a: [", "not YAML"), (None, "cannot be read")])
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "spec.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=f"{file}: .*{message}"):
        read_values(file, ())
