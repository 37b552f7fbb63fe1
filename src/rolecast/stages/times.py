"""What a step's time went to, as JSON lines beside the metrics: those of a run in lockstep repeat to the last bit, and times do not."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolecast.disk import writing_to
from rolecast.stages.metrics import read_metrics
from rolecast.store.artifact import write_text

FILE = "times.jsonl"
# In the order in which a step has them; "score" is the learner's pass for log-probs before the update, "other" what no part has.
PARTS = ("sample", "search", "judge", "score", "update", "publish", "evaluate", "save", "other")


class StepTimes:
    """Seconds of each part of the step that is running; `write` ends it. Of the ranks of a job one `writes`."""

    def __init__(self, folder: Path, after_step: int, writes: bool = True, clock: Callable[[], float] = time.perf_counter) -> None:
        """Keeps rows up to and including `after_step`; −1 starts anew."""
        self._file, self._writes, self._clock = folder / FILE, writes, clock
        self._spent: dict[str, float] = defaultdict(float)
        self._begun = clock()
        if writes:
            with writing_to(self._file):
                folder.mkdir(parents=True, exist_ok=True)
                kept = [row for row in read_metrics(folder, FILE) if row["step"] <= after_step]
                write_text(self._file, "".join(json.dumps(row) + "\n" for row in kept))

    def begin(self) -> None:
        """The first step begins now: what came before is none's."""
        self._spent.clear()
        self._begun = self._clock()

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self._spent[part] += self._clock() - start

    @contextmanager
    def playing(self, waits: Mapping[str, float]) -> Iterator[None]:
        """Of the time in here, `waits`, which grow meanwhile, tell what share was search and judge; the rest is sampling."""
        before, start = dict(waits), self._clock()
        try:
            yield
        finally:
            wall = self._clock() - start
            waited = {kind: seconds - before.get(kind, 0.0) for kind, seconds in waits.items()}
            whole = max(sum(waited.values()), wall)
            beside = {kind: wall * waited.get(kind, 0.0) / whole if whole else 0.0 for kind in ("search", "judge")}
            self.add({**beside, "sample": wall - sum(beside.values())})

    def add(self, parts: Mapping[str, float]) -> None:
        for part, seconds in parts.items():
            self._spent[part] += seconds

    def write(self, step: int) -> dict[str, float]:
        """The step's seconds by part, and in `total`."""
        now = self._clock()
        total = now - self._begun
        told = {part: self._spent.get(part, 0.0) for part in PARTS}
        told["other"] = max(0.0, total - sum(told.values()))
        if self._writes:
            with writing_to(self._file), self._file.open("a") as file:
                file.write(json.dumps({"step": step, **{part: round(s, 4) for part, s in told.items()}, "total": round(total, 4)}) + "\n")
        self.begin()
        return told


def mean_step(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds of a step by part; nothing where no step was timed."""
    return {part: sum(row.get(part) or 0.0 for row in rows) / len(rows) for part in (*PARTS, "total")} if rows else {}
