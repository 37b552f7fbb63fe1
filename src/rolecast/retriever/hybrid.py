"""Reciprocal-rank fusion (Cormack et al. 2009)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

Ranking = Sequence[tuple[int, float]]  # rows and scores, best first
DEEP = 4  # times as many hits of each ranker as are wanted of both


def depth(rankers: int, k: int) -> int:
    """How many hits of each ranker the first k of all take."""
    return k if rankers == 1 else DEEP * k


def fused(rankings: Sequence[Ranking], k: int) -> list[tuple[int, float]]:
    """The first k of one ranking as they are, of several by reciprocal rank."""
    if len(rankings) == 1:
        return list(rankings[0][:k])
    return reciprocal_rank([[row for row, _ in ranking] for ranking in rankings])[:k]


def reciprocal_rank(rankings: Sequence[Sequence[int]], constant: int = 60) -> list[tuple[int, float]]:
    """(row, Σ 1 / (constant + rank)) over all rankings, best first, ties by row; ranks count from 1."""
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] += 1 / (constant + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
