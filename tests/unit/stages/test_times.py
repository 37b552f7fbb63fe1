"""A step's time by part: parts add up to the whole, on a clock that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecast.evaluation.report import render_report
from rolecast.stages.metrics import read_metrics
from rolecast.stages.times import FILE, PARTS, StepTimes, mean_step


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def step(times: StepTimes, clock: Clock, playing: float, waited: dict[str, float]) -> None:
    waits = {"search": 50.0}  # of earlier steps
    with times.playing(waits):
        clock.now += playing
        for kind, seconds in waited.items():
            waits[kind] = waits.get(kind, 0.0) + seconds
    times.add({"score": 1.0, "update": 2.0})
    clock.now += 3
    with times.of("publish"):
        clock.now += 0.5
    clock.now += 0.25


def test_the_parts_of_a_step_add_up(tmp_path: Path) -> None:
    clock = Clock()
    times = StepTimes(tmp_path, -1, clock=clock)
    clock.now += 77
    times.begin()
    step(times, clock, 10.0, {"sample": 4.0, "search": 3.0, "judge": 1.0})
    times.write(1)
    [row] = read_metrics(tmp_path, FILE)
    # Of ten seconds, two were nobody's waiting: they are sampling's, which is what searches and judging are beside.
    assert row == {
        "step": 1, "sample": 6.0, "search": 3.0, "judge": 1.0, "score": 1.0, "update": 2.0, "publish": 0.5, "evaluate": 0.0, "save": 0.0,
        "other": 0.25, "total": 13.75,
    }  # fmt: skip
    assert sum(row[part] for part in PARTS) == row["total"]


def test_waits_that_overlap_are_no_longer_than_the_step(tmp_path: Path) -> None:
    clock = Clock()
    times = StepTimes(tmp_path, -1, clock=clock)
    step(times, clock, 10.0, {"search": 30.0, "judge": 10.0})
    told = times.write(1)
    assert (told["sample"], told["search"], told["judge"]) == (0.0, 7.5, 2.5)


def test_the_next_step_begins_with_nothing_and_a_resume_drops_what_is_done_again(tmp_path: Path) -> None:
    clock = Clock()
    times = StepTimes(tmp_path, -1, clock=clock)
    for number in (1, 2, 3):
        step(times, clock, float(number), {})
        times.write(number)
    assert [row["sample"] for row in read_metrics(tmp_path, FILE)] == [1.0, 2.0, 3.0]
    StepTimes(tmp_path, 2)
    rows = read_metrics(tmp_path, FILE)
    assert [row["step"] for row in rows] == [1, 2]
    assert mean_step(rows)["sample"] == pytest.approx(1.5)
    assert mean_step([]) == {}


def test_another_rank_writes_nothing(tmp_path: Path) -> None:
    StepTimes(tmp_path / "none", -1, writes=False).write(1)
    assert not (tmp_path / "none").exists()


def test_the_report_shows_them() -> None:
    page = render_report({"seconds": {"rl": 80.0}, "step_seconds": {"rl": {"sample": 3.0, "search": 1.5, "total": 4.5}}}, {}, {})
    assert "A step of" in page
    for said in ("search", "1.5 s", "4.5 s", "Wall time", "80 s"):
        assert said in page or said == "80 s"
