"""Reciprocal-rank fusion by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.retriever.hybrid import reciprocal_rank


def test_by_hand() -> None:
    fused = reciprocal_rank([[7, 3, 5], [3, 7, 9]])
    assert [row for row, _ in fused] == [3, 7, 5, 9]
    assert [score for _, score in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61 + 1 / 62, 1 / 63, 1 / 63])


def test_a_row_of_both_rankings_beats_the_first_of_one() -> None:
    assert [row for row, _ in reciprocal_rank([[1, 2], [3, 2]])] == [2, 1, 3]


def test_a_smaller_constant_favours_the_first_ranks() -> None:
    rankings = [[1, 2, 3, 4], [5, 4, 3, 2]]
    assert reciprocal_rank(rankings, constant=60)[0][0] == 2
    assert reciprocal_rank(rankings, constant=0)[0] == (1, 1.0)


@pytest.mark.parametrize(("rankings", "rows"), [([], []), ([[], []], []), ([[4, 2], []], [4, 2])])
def test_empty_rankings(rankings: list[list[int]], rows: list[int]) -> None:
    assert [row for row, _ in reciprocal_rank(rankings)] == rows


@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=6), max_size=3))
def test_every_row_once_best_first_ties_by_row(rankings: list[list[int]]) -> None:
    fused = reciprocal_rank(rankings)
    assert {row for row, _ in fused} == {row for ranking in rankings for row in ranking}
    assert fused == sorted(fused, key=lambda item: (-item[1], item[0]))
    assert len(fused) == len(dict(fused))
