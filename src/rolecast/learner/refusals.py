"""Updates that are not made because something in them is no finite number: what is told of them, and what is kept to look into."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from rolecast.learner.batch import TokenBatch
from rolecast.learner.cut import Cut
from rolecast.types import Slot

PATIENCE = 3  # updates in a row that may be refused to a slot
_MEASURED = (
    "sampler_logprob",
    "old_logprob",
    "ref_logprob",
    "value",
    "advantage",
    "target",
)  # what a batch holds beside tokens and weights


@dataclass(frozen=True, slots=True)
class Refusal:
    """`number`: the slot's update that was not made, counted from 0; `row`: which of its refusals in a row this is, from 1.

    `batches`: what it would have learned from, by objective.
    """

    slot: Slot
    number: int
    row: int
    reason: str
    batches: Sequence[Cut]

    def __str__(self) -> str:
        return f"slot {self.slot}, update {self.number} is left out: {self.reason}"

    @property
    def name(self) -> str:
        return f"update-{self.number:06d}.{self.slot}.{self.row}"

    def write(self, folder: Path) -> None:
        """`refusal.json`, and for each objective `OBJECTIVE.npz` with the arrays of its `TokenBatch`."""
        told = {"slot": self.slot, "update": self.number, "reason": self.reason, "objectives": [of.objective.name for of in self.batches]}
        (folder / "refusal.json").write_text(json.dumps(told, indent=1))
        for of in self.batches:
            np.savez_compressed(folder / f"{of.objective.name}.npz", **{f.name: np.asarray(getattr(of.batch, f.name)) for f in fields(TokenBatch)})  # type: ignore[arg-type]  # fmt: skip


def unsound(batch: TokenBatch) -> str:
    """Which numbers of trained tokens are not finite, and how many; "" where all are."""
    trained = batch.trained
    for name in _MEASURED:
        if bad := int((~np.isfinite(getattr(batch, name)[trained])).sum()):
            return f"{bad} of {int(trained.sum())} tokens have no finite {name}"
    return ""
