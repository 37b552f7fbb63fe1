"""The pipeline of a comparison: every run's own steps, beside each other, and one step after all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rolecast_pipelines.comparison import make_comparison
from typer.testing import CliRunner

from rolecast.cli.pipeline import app
from rolecast.config import read_json_config
from rolecast.schedule import digest
from rolecast.stages.comparison import Member, plan
from tests.compiled import Compiled


@pytest.fixture(scope="module")
def members() -> list[Member]:
    return plan(["decor", "naive_rag"], [0, 1], 5000)


@pytest.fixture(scope="module")
def compiled(members: list[Member], tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled.of(make_comparison(members), tmp_path_factory.mktemp("pipeline"))


def constant(task: dict[str, Any], name: str) -> str:
    return str(task["inputs"]["parameters"][name]["runtimeValue"]["constant"])


def before(compiled: Compiled, name: str) -> set[str]:
    """The task's and all that come before it."""
    return {name}.union(*(before(compiled, other) for other in compiled.tasks[name].get("dependentTasks", ())))


def test_each_run_is_prepared_with_its_config_under_the_comparisons_address(compiled: Compiled, members: list[Member]) -> None:
    prepared = {name: task for name, task in compiled.tasks.items() if name.startswith("prepare")}
    assert len(prepared) == 4
    for task, member in zip(prepared.values(), members, strict=True):
        assert constant(task, "run").endswith(f"}}}}/{member.key}")
        assert "pipelinechannel--out" in constant(task, "run")
        assert read_json_config(constant(task, "config")) == member.config
        assert constant(task, "schedule") == digest(member.config.schedule)


def test_runs_wait_for_nothing_but_their_own_steps_and_the_comparison_for_all(compiled: Compiled) -> None:
    reports = [name for name in compiled.tasks if name.startswith("report")]
    chains = [before(compiled, name) for name in reports]
    assert [len(chain) for chain in chains] == [6, 4, 6, 4]  # prepare, train and evaluate each stage, report
    assert len(set.union(*chains)) == 20
    assert before(compiled, "compare") == set.union(*chains) | {"compare"}
    assert json.loads(constant(compiled.tasks["compare"], "members")) == [["decor", 0], ["naive_rag", 0], ["decor", 1], ["naive_rag", 1]]


def test_nothing_is_cached_and_images_are_parameters(compiled: Compiled) -> None:
    assert all(not task["cachingOptions"].get("enableCache", False) for task in compiled.tasks.values())
    images = {executor["container"]["image"] for executor in compiled.spec["deploymentSpec"]["executors"].values()}
    assert all("inputs.parameters" in image for image in images), images


def test_the_command_writes_it_and_says_first_what_cannot_work(tmp_path: Path) -> None:
    out = tmp_path / "p.yaml"
    given = ["compare", "--methods", "decor,direct", "--budget", "5000", "--run", "s3://store/runs/c", "--launcher", "local"]
    result = CliRunner().invoke(app, [*given, "--out", str(out)])
    assert result.output == f"{out}\n", result.exception
    assert "compare" in Compiled.read(out.read_text()).tasks
    refused = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "q.yaml"), "--set", "rollouts=workers", "--run", str(tmp_path)])
    assert "find stage rl through a store" in str(refused.exception)
    assert not (tmp_path / "q.yaml").exists()
