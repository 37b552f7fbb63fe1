"""Work in a run: one process at a time, and what is noted of it: how long each stage took, and what made it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from rolecast.origin import origin
from rolecast.processes import die_with_parent
from rolecast.reading import read_own
from rolecast.scratch import clear
from rolecast.stages.run import Run, hold
from rolecast.store.artifact import recover, write_text
from rolecast.store.fencing import FencedStore, only_learner


@dataclass(slots=True)
class _Clock:
    """Of a stage that this process works at."""

    run: Run
    stage: str
    noted: float  # until when time was noted

    def note(self) -> None:
        now = time.monotonic()
        _note_seconds(self.run, self.stage, now - self.noted)
        self.noted = now


_CLOCKS: dict[Path, _Clock] = {}  # by the run's folder, whose lock lets one process work there


def note_time(run: Run) -> None:
    """At a checkpoint: what was spent until now counts, however the process ends."""
    if run.path in _CLOCKS:
        _CLOCKS[run.path].note()


@contextmanager
def working(run: Run, stage: str, first: bool = True, training: bool = False) -> Iterator[None]:
    """Holds the run's lock and notes how long the stage took. The kernel drops the lock however the process ends.

    In a store, which no kernel watches, training takes the run's next attempt as well. Of the ranks of one job, the `first` does it all.
    """
    if not first:
        yield
        return
    die_with_parent()
    with (run.path / ".lock").open("w") as lock, ExitStack() as stack:
        hold(lock, run.path)
        recover(run.path)
        clear(run.path)
        if training and isinstance(run.store, FencedStore):
            stack.enter_context(only_learner(run.store, run.location))
        _note_origin(run, stage)
        clock = _CLOCKS[run.path] = _Clock(run, stage, time.monotonic())
        try:
            yield
        finally:
            del _CLOCKS[run.path]
            clock.note()


class Origin(BaseModel):
    """Of one part of a stage's work."""

    commit: str
    command: str
    machine: str


def seconds(run: Run) -> dict[str, float]:
    """Wall seconds per stage, of all attempts, however they ended; of one that was killed until its last checkpoint."""
    file = run.recall(run.path / "seconds.json")
    return read_own(file, dict[str, float], "delete it") if file.exists() else {}


def origins(run: Run) -> dict[str, list[dict[str, str]]]:
    """What made each stage, one entry for each commit, command and machine that had a part in it."""
    file = run.recall(run.path / "origins.json")
    return read_own(file, dict[str, list[Origin]], "delete it") if file.exists() else {}


def _note_origin(run: Run, stage: str) -> None:
    noted, now = origins(run), origin()
    if now not in noted.get(stage, []):
        noted[stage] = [*noted.get(stage, []), now]
        write_text(run.path / "origins.json", json.dumps(noted, indent=1))
        run.record(run.path / "origins.json")


def _note_seconds(run: Run, stage: str, spent: float) -> None:
    noted = seconds(run)
    noted[stage] = round(noted.get(stage, 0.0) + spent, 1)
    write_text(run.path / "seconds.json", json.dumps(noted, indent=1))
    run.record(run.path / "seconds.json")
