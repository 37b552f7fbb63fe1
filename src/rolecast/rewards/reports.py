"""Scores of long answers from what a judge says of single criteria: pure functions of levels and weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from rolecast.types import RubricItem


def met(scored: Sequence[tuple[float, float]]) -> float:
    """The weighted mean of (weight, level), levels in [0, 1]. An item of negative weight takes away as far as it was met, and is no part of
    what can be reached, as in HealthBench; the score stays in [0, 1]."""
    total = fsum(weight for weight, _ in scored if weight > 0)
    return min(max(fsum(weight * level for weight, level in scored) / total, 0.0), 1.0) if total else 0.0


def share_of(own: float, other: float) -> float:
    """Of both together; 0 where there is nothing."""
    return own / (own + other) if own + other else 0.0


Pair = tuple[float, float]  # levels of the text and of the reference, each in [0, 1]


def disagree(one: Pair, other: Pair) -> bool:
    """Whether each prefers another one of the two texts; one that finds them alike contradicts nobody."""
    return (one[0] - one[1]) * (other[0] - other[1]) < 0


def both_orders(one: Pair, other: Pair) -> Pair:
    """What a judge says that saw the two texts in both orders: the mean of the two, as in the balanced position calibration of Wang et al. 2023
    (arXiv:2305.17926); a tie at the mean of all four levels where the orders `disagree`, as in MT-bench (Zheng et al. 2023, arXiv:2306.05685)."""
    own, reference = (one[0] + other[0]) / 2, (one[1] + other[1]) / 2
    tie = (own + reference) / 2
    return (tie, tie) if disagree(one, other) else (own, reference)


def race(items: Sequence[RubricItem], levels: Sequence[Pair]) -> dict[str, float]:
    """Reference-based scores: S = Σ w·x / (Σ w·x + Σ w·y), x the text's levels and y the reference's, over all criteria under "", and over
    those of each dimension under its name. ½: as good as the reference. After RACE of DeepResearch Bench (Du et al. 2025,
    arXiv:2506.11763), whose weights are the criterion's times its dimension's; there the levels are points from 0 to 10."""
    names = ["", *dict.fromkeys(item.dimension for item in items if item.dimension)]
    scores = {}
    for name in names:
        own, other = (
            fsum(item.weight * pair[side] for item, pair in zip(items, levels, strict=True) if name in ("", item.dimension))
            for side in (0, 1)
        )
        scores[name] = share_of(own, other)
    return scores
