"""Intervals over many questions: the resamples are those of one large draw, and never in memory at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from rolecast.evaluation import intervals


@pytest.mark.parametrize("digits", [16, 1])
@pytest.mark.parametrize("drawn", [1, 999, 7000])
def test_drawing_in_parts_changes_no_interval(monkeypatch: pytest.MonkeyPatch, drawn: int, digits: int) -> None:
    scores = np.random.default_rng(1).random(333).round(digits)
    whole = intervals.interval(scores, 4, 200)
    monkeypatch.setattr(intervals, "DRAWN", drawn)
    assert intervals.interval(scores, 4, 200) == whole


@pytest.mark.parametrize("digits", [16, 3])
def test_memory_does_not_grow_with_the_resamples(digits: int) -> None:
    scores = np.random.default_rng(1).random(20_000).round(digits)
    tracemalloc.start()
    intervals.interval(scores, 0, 20_000 if digits == 3 else 400)  # all at once: 64 MB of draws
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 32 << 20
