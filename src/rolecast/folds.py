"""What a loss is averaged over, from inside out: a mean over tokens is another one than a mean over rollouts of means over their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["unit", "chain", "baseline", "rollout", "group", "batch"]


@dataclass(frozen=True, slots=True)
class Fold:
    """One step of a reduction: what lies inside one `level` is averaged, or summed where a paper sums."""

    how: Literal["mean", "sum"]
    level: Level


def mean(level: Level) -> Fold:
    return Fold("mean", level)


def total(level: Level) -> Fold:
    return Fold("sum", level)


# From inside out, over tokens, or over units where a ratio is one per unit. What is left at the end is added up.
Reduction = tuple[Fold, ...]
TOKEN_MEAN: Reduction = (mean("batch"),)
