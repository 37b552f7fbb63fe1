from __future__ import annotations

import io

import pytest
from cluster_stage import Stage
from fake_api import FakeApi

from rolecast.launching.pace import Pace
from rolecast.stages.progress import Progress, Seen, read_progress


def printed(done: int, total: int, label: str = "rl") -> str:
    """The line that a learner prints."""
    out = io.StringIO()
    Progress(label, total, every=0.0, out=out).update(done, {"reward": 0.5})
    return out.getvalue().rstrip("\n")


def test_what_a_learner_prints_of_its_progress_is_read() -> None:
    assert read_progress(printed(12, 100)) == Seen("rl", 12, 100)
    assert read_progress(printed(100, 100, "a_longer_stage_name")) == Seen("a_longer_stage_name", 100, 100)
    assert read_progress(printed(3, 9).encode("ascii", "replace").decode()) == Seen("rl", 3, 9)  # where the log's encoding lacks the bar


@pytest.mark.parametrize("line", ["", "step 12/100", "rl 12/100", "rl ████ 12/100  0:01 < 0:02"])
def test_other_lines_are_no_progress(line: str) -> None:
    assert read_progress(line) is None


class Told:
    def __init__(self) -> None:
        self.now, self.lines = 0.0, list[str]()
        self.pace = Pace("rolecast-rl-a", self.lines.append, lambda: self.now)

    def at(self, now: float, done: int, total: int = 100, label: str = "rl") -> None:
        self.now = now
        self.pace.read(printed(done, total, label))
        self.pace.tell()


def test_the_end_is_estimated_from_the_steps_that_were_seen() -> None:
    """A job that went on from step 40 did the steps before at another time."""
    told = Told()
    told.at(0, 40)
    told.at(60, 50)
    told.at(300, 60)
    assert told.lines == [
        "job rolecast-rl-a: rl 40 of 100 (40 %)",
        "job rolecast-rl-a: rl 50 of 100 (50 %), about 5 min left",
        "job rolecast-rl-a: rl 60 of 100 (60 %), about 10 min left",
    ]


def test_hours_are_told_as_hours() -> None:
    told = Told()
    told.at(0, 0)
    told.at(3600, 40)
    assert told.lines[-1].endswith("about 1 h 30 min left")


def test_a_line_comes_once_a_minute_at_most_and_only_if_there_is_news() -> None:
    told = Told()
    for second in range(0, 60, 10):
        told.at(second, second)
    told.now = 200
    told.pace.tell()
    told.now = 300
    told.pace.tell()
    assert len(told.lines) == 2


def test_an_attempt_that_starts_before_the_last_one_begins_a_new_count() -> None:
    told = Told()
    told.at(0, 50)
    told.at(60, 90)
    told.at(120, 40)
    told.at(180, 50)
    assert told.lines[-1].endswith("about 5 min left")


def test_a_running_jobs_progress_stands_in_the_steps_log(api: FakeApi) -> None:
    stage = Stage(api)
    api.logs[f"{stage.spec.job_name}-master-0"] = [f"2026-01-01T00:00:00Z {printed(12, 100)}"]
    stage.then(stage.pod("Running"))
    stage.then(stage.heard("12/100"))
    stage.then(stage.later(60))
    stage.then(lambda: None)
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert f"job {stage.spec.job_name}: rl 12 of 100 (12 %)" in stage.said
