"""What may change while a run goes on is recorded, with the step that it began at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig, make_config
from rolecast.stages.environment import Environment
from rolecast.stages.run import Run, create
from rolecast.stages.segments import begin_segment, segments_of

HERE = Environment("bm25 1", "lexical", "here", "here", {})


def run_of(path: Path, **rl: Any) -> Run:
    return create(path / "run", make_config({"stages": {"rl": rl}}, "here"))


def starts(run: Run) -> list[tuple[int, int]]:
    return [(segment["step"], segment["settings"]["stages.rl.questions"]) for segment in segments_of(run, "rl")]


def test_a_stage_that_goes_on_unchanged_has_one_segment(tmp_path: Path) -> None:
    run = run_of(tmp_path, questions=8)
    for step in (0, 10, 20):
        begin_segment(run, "rl", step, HERE)
    assert starts(run) == [(0, 8)]


def test_a_changed_setting_begins_a_segment_where_the_stage_goes_on(tmp_path: Path) -> None:
    begin_segment(run_of(tmp_path, questions=8), "rl", 0, HERE)
    begin_segment(run_of(tmp_path, questions=16), "rl", 10, HERE)
    begin_segment(run_of(tmp_path, questions=16), "rl", 20, HERE)  # unlike the first, like the last
    begin_segment(run_of(tmp_path, questions=4), "rl", 30, HERE)
    assert starts(run_of(tmp_path, questions=4)) == [(0, 8), (10, 16), (30, 4)]


def test_segments_that_a_crash_took_back_are_dropped(tmp_path: Path) -> None:
    begin_segment(run_of(tmp_path, questions=8), "rl", 0, HERE)
    begin_segment(run_of(tmp_path, questions=16), "rl", 10, HERE)
    begin_segment(run_of(tmp_path, questions=16), "rl", 10, HERE)  # it went on from the same checkpoint
    assert starts(run_of(tmp_path, questions=16)) == [(0, 8), (10, 16)]
    begin_segment(run_of(tmp_path, questions=4), "rl", 10, HERE)  # nothing was trained with 16
    assert starts(run_of(tmp_path, questions=4)) == [(0, 8), (10, 4)]
    begin_segment(run_of(tmp_path, questions=8), "rl", 10, HERE)
    assert starts(run_of(tmp_path, questions=8)) == [(0, 8)]


def test_another_address_begins_a_segment_too(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    begin_segment(run, "rl", 0, HERE)
    begin_segment(run, "rl", 5, replace(HERE, judge="http://judge:8080", overrides={"ROLECAST_JUDGE_URL": "http://judge:8080"}))
    assert [segment["environment"]["judge"] for segment in segments_of(run, "rl")] == ["here", "http://judge:8080"]


def test_a_segment_holds_what_may_change_of_its_stage_alone(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    begin_segment(run, "sft", 0)
    [segment] = segments_of(run, "sft")
    assert segment["environment"] is None
    assert {"threads", "rollouts", "learner", "retriever.patience", "stages.sft.steps"} <= set(segment["settings"])
    assert not [key for key in segment["settings"] if key.startswith("stages.rl") or key in ("seed", "stages.sft.lr")]
    assert segments_of(run, "rl") == []
