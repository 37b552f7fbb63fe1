from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolecast.cli.pipeline import app
from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.launching.local_pipeline import compile_pipeline
from rolecast.methods.naive_rag import NaiveRagConfig
from rolecast.schedule import digest
from rolecast.types import Stage
from tests.compiled import Compiled

SFT_RL = RunConfig().schedule
THREE = (Stage("warm_up", "sft"), Stage("second_round", "rl", "warm_up"), Stage("third", "rl", "second_round"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    out = tmp_path_factory.mktemp("pipeline") / "pipeline.yaml"
    compile_pipeline(out, SFT_RL)
    return Compiled.read(out.read_text())


def test_compiling_is_deterministic(compiled: Compiled, tmp_path: Path) -> None:
    compile_pipeline(tmp_path / "again.yaml", SFT_RL)
    assert (tmp_path / "again.yaml").read_text() == compiled.text


def test_no_step_is_cached_and_every_step_takes_the_image_from_the_parameter(compiled: Compiled) -> None:
    tasks = compiled.tasks
    assert len(tasks) == 7
    assert all(not task["cachingOptions"].get("enableCache", False) for task in tasks.values())
    images = {executor["container"]["image"] for executor in compiled.spec["deploymentSpec"]["executors"].values()}
    assert all("inputs.parameters" in image for image in images), images


def test_steps_install_nothing_at_run_time(compiled: Compiled) -> None:
    assert "pip install" not in compiled.text


def test_rl_starts_after_sft_was_evaluated(compiled: Compiled) -> None:
    tasks = compiled.tasks
    assert set(tasks["train-2"]["dependentTasks"]) >= {"train", "evaluate"}
    assert [tasks[name]["inputs"]["parameters"]["stage"] for name in ("train", "train-2")] == [constant("sft"), constant("rl")]


def constant(value: str) -> dict[str, Any]:
    return {"runtimeValue": {"constant": value}}


def test_every_stage_of_a_schedule_is_trained_and_evaluated_in_turn(tmp_path: Path) -> None:
    compile_pipeline(tmp_path / "p.yaml", THREE)
    compiled = Compiled.read((tmp_path / "p.yaml").read_text())
    assert compiled.spec["pipelineInfo"]["name"] == "rolecast-warm-up-second-round-third-eval"
    tasks = compiled.tasks
    assert len(tasks) == 1 + 2 * 3 + 2
    assert tasks["prepare"]["inputs"]["parameters"]["schedule"] == constant(digest(THREE))
    for number, stage in enumerate(THREE, 1):
        train, evaluate = (tasks[name if number == 1 else f"{name}-{number}"] for name in ("train", "evaluate"))
        parameters = train["inputs"]["parameters"]
        assert (parameters["stage"], parameters["kind"]) == (constant(stage.name), constant(stage.kind))
        assert evaluate["inputs"]["parameters"]["stage"] == constant(stage.name)
        assert [task["taskInfo"]["name"] for task in (train, evaluate)] == [f"train-{stage.name}", f"evaluate-{stage.name}"]
    assert set(tasks["train-3"]["dependentTasks"]) >= {"train-2", "evaluate-2"}
    assert set(tasks["report"]["dependentTasks"]) >= {"evaluate", "evaluate-2", "evaluate-3"}


def test_a_rollout_stage_is_a_step_without_an_evaluation(tmp_path: Path) -> None:
    schedule = (THREE[0], Stage("plans", "rollout", "warm_up"), replace(THREE[1], data="plans"))
    compile_pipeline(tmp_path / "p.yaml", schedule)
    tasks = Compiled.read((tmp_path / "p.yaml").read_text()).tasks
    named = {task["taskInfo"]["name"]: task for task in tasks.values()}
    assert sorted(named) == [
        "conclude", "evaluate-second_round", "evaluate-warm_up", "prepare", "report", "rollout-plans", "train-second_round", "train-warm_up",
    ]  # fmt: skip
    parameters = named["rollout-plans"]["inputs"]["parameters"]
    assert (parameters["stage"], parameters["kind"]) == (constant("plans"), constant("rollout"))
    assert set(named["train-second_round"]["dependentTasks"]) == {"train-2", "evaluate"}
    assert set(named["report"]["dependentTasks"]) == {"evaluate", "evaluate-2", "train-3"}


def test_a_digest_tells_the_shapes_of_schedules_apart() -> None:
    assert digest(SFT_RL) == digest(RunConfig(seed=1).schedule)
    others = [
        RunConfig(method=NaiveRagConfig()).schedule,
        THREE,
        (*THREE[:2], Stage("third", "rl", "warm_up")),  # starts from elsewhere
        (*THREE[:2], Stage("third", "sft", "second_round")),
        (*THREE[:2], Stage("fourth", "rl", "second_round")),
    ]
    assert len({digest(schedule) for schedule in (SFT_RL, *others)}) == 6


def test_the_command_compiles_the_stages_of_the_configs_method(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("method: {name: naive_rag}\n")
    shapes = {}
    for name, arguments in {"default": [], "config": ["--config", str(tmp_path / "c.yaml")]}.items():
        out = tmp_path / f"{name}.yaml"
        result = CliRunner().invoke(app, ["compile", "--out", str(out), *arguments])
        assert result.output == f"{out}\n", result.exception
        shapes[name] = sorted(Compiled.read(out.read_text()).tasks)
    assert shapes == {
        "default": ["conclude", "evaluate", "evaluate-2", "prepare", "report", "train", "train-2"],
        "config": ["conclude", "evaluate", "prepare", "report", "train"],
    }  # fmt: skip


def test_it_compiles_where_the_locale_is_ascii(compiled: Compiled, tmp_path: Path) -> None:
    out = tmp_path / "p.yaml"
    command = [sys.executable, "-m", "rolecast.cli.main", "pipeline", "compile", "--out", str(out)]
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    assert out.read_text() == compiled.text


@pytest.mark.parametrize(
    ("name", "said"), [("dir.yaml", "is a folder"), (300 * "a" + ".yaml", "cannot be written"), ("p.txt", "ends in .yaml")]
)
def test_a_place_that_takes_no_file_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "dir.yaml").mkdir()
    with pytest.raises(InputError, match=said):
        compile_pipeline(tmp_path / name, SFT_RL)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no directory"):
        compile_pipeline(tmp_path / "none" / "p.yaml", SFT_RL)
