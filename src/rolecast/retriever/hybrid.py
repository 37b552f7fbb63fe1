"""Reciprocal-rank fusion (Cormack et al. 2009)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


def reciprocal_rank(rankings: Sequence[Sequence[int]], constant: int = 60) -> list[tuple[int, float]]:
    """(row, Σ 1 / (constant + rank)) over all rankings, best first, ties by row; ranks count from 1."""
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] += 1 / (constant + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
