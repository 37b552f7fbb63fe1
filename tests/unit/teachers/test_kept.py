"""SFT on turns that a rollout stage kept: which are kept, and in which order they are learned."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.data.records import write_questions
from rolecast.errors import InputError
from rolecast.learner.ranks import ALONE
from rolecast.methods.decor import Decor
from rolecast.methods.registry import make_method
from rolecast.rollout.render import Renderer
from rolecast.stages import sft as sft_stage
from rolecast.stages.checks import check_run
from rolecast.stages.run import Run
from rolecast.stages.sft import BLOCK, draw_block, sft
from rolecast.stages.team import QUESTIONS
from rolecast.store.artifact import writing
from rolecast.teachers.kept import draw_kept, kept_turns, read_turns
from rolecast.types import Action, Example, Gold, Observation, Question, Stage, Thread, Trajectory


def episode(status: str = "ok", valid: bool = True) -> Trajectory:
    t = Trajectory("t", Question("q", "Who?", Gold(("x",))), "g", 0, "m", 0, status=status)  # type: ignore[arg-type]
    said = Action("t/a.0#0", (3, 4), (0.0, 0.0), "v", "", "stop", valid)
    again = Action("t/a.0#1", (6,), (0.0,), "v", "", "stop")
    t.threads = [
        Thread("t/a.0", "planner", "external:x", turns=[Observation((1, 2), ""), said, Observation((5,), ""), again]),
        Thread("t/probe/a.0", "answerer", "external:x", probe=True, turns=[Observation((7,), "")]),
    ]
    return t


def test_the_turns_of_a_whole_episode_are_kept_token_by_token() -> None:
    kept = json.loads(json.dumps(kept_turns(episode())))
    assert kept == {"turns": [{"role": "planner", "ids": [1, 2, 3, 4, 5, 6], "trained": [0, 0, 1, 1, 0, 1]}]}
    [row] = read_turns([Question("q.0", "Who?", Gold(("x",)), given=kept)], "teacher")
    assert row == Example((1, 2, 3, 4, 5, 6), (False, False, True, True, False, True), tag="planner")


@pytest.mark.parametrize(("status", "valid"), [("format", True), ("length", True), ("error", True), ("ok", False)])
def test_nothing_is_kept_of_an_episode_with_a_reply_that_could_not_be_read(status: str, valid: bool) -> None:
    assert kept_turns(episode(status, valid)) is None


def test_a_stage_that_kept_no_turns_is_named() -> None:
    with pytest.raises(InputError, match="stage plans kept no turns to learn from"):
        read_turns([Question("q", "Who?", Gold(("x",)), given={"plan": 1})], "plans")


def test_every_row_comes_once_in_each_pass_and_passes_differ() -> None:
    rows = [Example((number,), (True,)) for number in range(10)]
    drawn = [row.ids[0] for block in range(5) for row in draw_kept(rows, 0, "teacher", block, 4)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert [row.ids[0] for row in draw_kept(rows, 0, "teacher", 1, 4)] == drawn[4:8]
    assert Counter(row.ids[0] for row in draw_kept(rows[:3], 0, "teacher", 0, 7)).total() == 7  # more than there are


SCRATCH = {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "feed_forward": 16}


def config_of(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> RunConfig:
    first, *_ = Decor(RunConfig().method).schedule()  # type: ignore[arg-type]
    stages = (Stage("teacher", "rollout"), Stage("sft", "sft", objectives=first.objectives, merges=("shared",), data="teacher"))
    monkeypatch.setattr(Decor, "schedule", lambda self: stages)
    monkeypatch.setattr(Decor, "prepare", lambda self, t: kept_turns(t))
    return make_config({"model": {"scratch": SCRATCH}, "stages": {"sft": {"steps": 2, "batch": 2, **settings}}}, "here")


def test_a_stage_learns_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, config_of(monkeypatch))
    with writing(run.questions("teacher"), QUESTIONS, {}) as partial:
        given = kept_turns(episode())
        write_questions(partial / "train.jsonl", [Question(f"q{n}", "Who?", Gold(("x",)), given=given or {}) for n in range(3)])
        write_questions(partial / "dev.jsonl", [Question("d", "Who?", Gold(("x",)))])
    learned: list[Example] = []
    monkeypatch.setattr(sft_stage, "_update", lambda learner, method, rows: learned.extend(rows) or {})
    sft(run, run.config.schedule[1], ALONE)
    assert [row.ids for row in learned] == [(1, 2, 3, 4, 5, 6)] * 4
    assert run.has(run.model("sft"))


def test_drills_go_first_there_too(monkeypatch: pytest.MonkeyPatch, renderer: Renderer) -> None:
    config = config_of(monkeypatch, drills=1)
    stage, method, rows = config.schedule[1], make_method(config.method), [Example((1, 2), (False, True), tag="planner")]
    tags = [{row.tag for batch in draw_block(config, stage, method, renderer, number, rows) for row in batch} for number in (0, 1)]
    assert tags == [{"drill"}, {"planner"}]
    assert sum(map(len, draw_block(config, stage, method, renderer, 1, rows))) == BLOCK * 2


def test_a_run_with_data_of_its_own_needs_no_invented_world_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("corpus", "train", "dev", "test")}
    config = config_of(monkeypatch)
    check_run(config.model_copy(update={"data": config.data.model_copy(update={"world": None, **files})}), "runs/a")
