"""Kept groups scored again: under the config that trained they are training's own numbers, to the last bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.credit import Floats, advantages
from rolecast.errors import InputError
from rolecast.learner import step as learner_step
from rolecast.learner.batch import action_lengths
from rolecast.stages import rl
from rolecast.stages.inputs import inputs
from rolecast.stages.rescore import rescore, write_rescored
from rolecast.stages.run import Run, create
from rolecast.stages.train import train
from rolecast.types import Thread, Unit


def config(alpha: float, **stage: Any) -> RunConfig:
    return make_config(
        {
            "name": "tiny", "threads": 1,
            "method": {"name": "decor", "prompts": "compact", "condenser": "extractive", "k": 2, "max_turns": 2, "max_tokens": 32, "alpha": alpha},
            "model": {"max_context": 256, "scratch": {"hidden": 48, "layers": 2, "heads": 2, "head_dim": 32, "feed_forward": 96}},
            "data": {"world": {"entities": {"train": 150, "dev": 60, "test": 90}, "questions": {"train": 40, "dev": 4, "test": 6}}},
            "stages": {
                "sft": {"steps": 250, "batch": 16, "lr": 5e-3},
                "rl": {"steps": 2, "questions": 4, "group": 6, "dev": 4, "eval_every": 2, "refill": 2, "record": True, **stage},
            },
        },
        "here",
    )  # fmt: skip


class Seen:
    """What training's update was given, by step."""

    def __init__(self) -> None:
        self.units: list[list[Unit]] = []
        self.advantages: list[dict[str, Floats]] = []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Seen]:
    seen, update = Seen(), learner_step.reinforce

    def reinforce(learner: Any, threads: Sequence[Thread], units: Sequence[Unit], *rest: Any, **named: Any) -> Any:
        seen.units.append(list(units))
        seen.advantages.append(advantages(units, learner.objectives[0], action_lengths(threads)))
        return update(learner, threads, units, *rest, **named)

    run = create(tmp_path_factory.mktemp("rescore") / "run", config(0.4, shuffle_rewards=True))
    inputs(run)
    train(run, "sft")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rl, "reinforce", reinforce)
        train(run, "rl")
    return run, seen


def equal(found: dict[str, Floats], expected: dict[str, Floats]) -> bool:
    return found.keys() == expected.keys() and all((found[action] == expected[action]).all() for action in expected)


def test_under_its_own_config_a_run_has_the_numbers_that_it_trained_on(trained: tuple[Run, Seen]) -> None:
    run, seen = trained
    found = list(rescore(run, "rl"))
    assert found
    assert [list(step.units) for step in found] == seen.units
    assert all(equal(dict(step.advantages), expected) for step, expected in zip(found, seen.advantages, strict=True))
    assert any(value.any() for step in found for value in step.advantages.values())


def test_under_another_alpha_it_has_the_numbers_of_a_training_with_that_alpha(trained: tuple[Run, Seen], tmp_path: Path) -> None:
    """The other run weighs otherwise and has the same groups."""
    run, seen = trained
    other = create(tmp_path / "other", config(0.9, shuffle_rewards=True))
    shutil.copytree(run.stage("rl") / "trajectories", other.stage("rl") / "trajectories")
    again = list(rescore(other, "rl", ["method.alpha=0.4"]))
    assert [list(step.units) for step in again] == seen.units
    assert all(equal(dict(step.advantages), expected) for step, expected in zip(again, seen.advantages, strict=True))
    assert [list(step.units) for step in rescore(other, "rl")] != seen.units


def test_the_table_stands_beside_what_training_wrote(trained: tuple[Run, Seen], tmp_path: Path) -> None:
    run, seen = trained
    table = write_rescored(run, "rl", (), tmp_path / "units.jsonl")
    rows = [line.split() for line in table.splitlines()[2:] if line and not line.startswith("pass@k")]
    assert rows
    assert all(row[3] == row[4] for row in rows)  # trained and now
    lines = [json.loads(line) for line in (tmp_path / "units.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines] == [unit.reward for units in seen.units for unit in units]
    assert {line["role"] for line in lines} <= {"planner", "filter", "answerer"}
    assert "pass@k of" in table
    assert " 1: " in table
    assert " 6: " in table
    assert [
        row[3] == row[4] for row in (line.split() for line in write_rescored(run, "rl", ["method.alpha=1.0"], None).splitlines()[2:5])
    ] != [True] * 3


def test_what_cannot_be_scored_again_is_refused(trained: tuple[Run, Seen], tmp_path: Path) -> None:
    run, _ = trained
    with pytest.raises(InputError, match="stage sft is sft, which has no groups; name an RL stage"):
        rescore(run, "sft")
    with pytest.raises(InputError, match=r"seed changes no reward of kept groups; --set takes keys of the method"):
        rescore(run, "rl", ["seed=3"])
    with pytest.raises(InputError, match=r"method\.alfa changes no reward"):
        rescore(run, "rl", ["method.alfa=0.3"])
    with pytest.raises(InputError, match="makes another method"):
        rescore(run, "rl", ["method.name=coda"])
    with pytest.raises(InputError, match=r"kept no groups; train it with --set stages\.rl\.record=true"):
        rescore(create(tmp_path / "new", config(0.4)), "rl")
