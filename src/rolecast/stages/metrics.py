"""Metrics as JSON lines, one row a step, mirrored to TensorBoard and to trackers (`stages.trackers`). A resumed stage drops the rows after its checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rolecast.disk import writing_to
from rolecast.reading import read_own_lines
from rolecast.stages.trackers import Tracker
from rolecast.store.artifact import write_text


class Row(BaseModel):
    """What a row has at least: a step, and numbers."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)

    step: int


class MetricsLog:
    def __init__(self, folder: Path, after_step: int, writes: bool = True, trackers: Sequence[Tracker] = ()) -> None:
        """Keeps rows up to and including `after_step`; −1 starts anew. Of the ranks of a job one `writes`."""
        self._writes = writes
        self._trackers = trackers
        if not writes:
            return
        from torch.utils.tensorboard import SummaryWriter  # here, because a report reads metrics where there is no torch

        self._file = folder / "metrics.jsonl"
        with writing_to(self._file):
            folder.mkdir(parents=True, exist_ok=True)
            kept = [row for row in read_metrics(folder) if row["step"] <= after_step]
            write_text(self._file, "".join(json.dumps(row) + "\n" for row in kept))
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=after_step + 1 if after_step >= 0 else None)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._writes:
            return
        row = {"step": step, **{name: round(v, 6) if math.isfinite(v) else None for name, v in sorted(metrics.items())}}
        with writing_to(self._file):
            with self._file.open("a") as file:
                file.write(json.dumps(row) + "\n")
            for name, value in metrics.items():
                self._board.add_scalar(name, value, step)
        for tracker in self._trackers:
            tracker.write(step, {name: value for name, value in metrics.items() if math.isfinite(value)})

    def close(self) -> None:
        if self._writes:
            self._board.close()
        for tracker in self._trackers:
            tracker.close()


def read_metrics(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Complete rows of a stage's metrics, or of another file like it; a line that was cut off by a crash is left out."""
    file = folder / name
    if not file.exists():
        return []
    return read_own_lines(file, Row, "delete that line")
