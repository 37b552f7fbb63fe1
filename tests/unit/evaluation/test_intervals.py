"""Intervals and tests, against numbers worked by hand."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.evaluation.comparison import paired
from rolecast.evaluation.intervals import DIFFERENCES, alike, interval, mcnemar, pass_at_k


@pytest.mark.parametrize(
    ("value", "n", "low", "high"),
    [
        (0.0, 32, 0.0, 0.10888),  # Clopper–Pearson, as in tables
        (1.0, 32, 0.89112, 1.0),
        (0.0, 10, 0.0, 0.30850),
        (1.0, 1, 0.025, 1.0),
        (0.5, 10, 0.34575, 0.65425),
    ],
)
def test_scores_that_are_all_alike_have_an_interval(value: float, n: int, low: float, high: float) -> None:
    assert interval(np.full(n, value), 0, 100) == pytest.approx((low, high), abs=1e-5)
    assert alike(value, n) == interval(np.full(n, value), 0, 100)


def test_differences_that_are_all_nothing_are_not_known_to_be_nothing() -> None:
    low, high = interval(np.zeros(32), 0, 100, DIFFERENCES)
    assert (low, high) == pytest.approx((-0.10888, 0.10888), abs=1e-5)


def test_counts_of_values_are_drawn_as_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are bootstraps of the same rows: their ends differ by the noise of 20,000 resamples."""
    scores = np.random.default_rng(3).integers(0, 4, 400) / 3
    counted = interval(scores, 0, 20_000)
    monkeypatch.setattr("rolecast.evaluation.intervals.FEW", 1000)
    assert interval(scores, 0, 20_000) == pytest.approx(counted, abs=3e-3)
    deviation = scores.std() / 20
    assert counted == pytest.approx((scores.mean() - 1.96 * deviation, scores.mean() + 1.96 * deviation), abs=4e-3)


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 32), (0, 6, 2 / 64), (8, 2, 2 * (1 + 10 + 45) / 1024), (3, 3, 1.0)],
)
def test_mcnemar(better: int, worse: int, p: float) -> None:
    assert mcnemar(better, worse) == pytest.approx(p)


def test_no_p_is_more_than_one() -> None:
    """One more on one side: the tail is a half, and rounding may pass it."""
    assert max(mcnemar(k + 1, k) for k in range(200)) == 1.0


def test_mcnemar_of_many_is_neither_slow_nor_lost_in_rounding() -> None:
    assert mcnemar(50_300, 49_700) == pytest.approx(0.0582, abs=2e-3)  # z = 600 / sqrt(100,000)
    assert mcnemar(90_000, 10_000) == pytest.approx(0.0, abs=1e-12)


def test_a_pair_has_the_test_where_scores_are_right_or_wrong() -> None:
    found = paired([{"a": 1.0, "b": 1.0, "c": -1.0, "d": 0.0}])
    assert (found["mean"], found["n"], found["better"], found["worse"], found["p"]) == (0.25, 4, 2, 1, 1.0)
    assert "p" not in paired([{"a": 0.5, "b": 1.0}])
    assert "p" not in paired([{"a": 1.0}, {"a": 0.0}])


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    hits = sum(any(sample < c for sample in drawn) for drawn in combinations(range(n), k))
    assert pass_at_k([(c, n)], k) == pytest.approx(hits / comb(n, k))


def test_pass_at_k_of_questions_with_samples_enough() -> None:
    assert pass_at_k([(1, 4), (0, 4), (1, 1)], 2) == pytest.approx((0.5 + 0) / 2)
    assert pass_at_k([(1, 1)], 2) is None
