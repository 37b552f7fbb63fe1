"""Intervals over many questions: the resamples are those of one large draw, and never in memory at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from rolecast.evaluation import metrics


@pytest.mark.parametrize("drawn", [1, 999, 7000])
def test_drawing_in_parts_changes_no_interval(monkeypatch: pytest.MonkeyPatch, drawn: int) -> None:
    scores = np.random.default_rng(1).random(333)
    whole = metrics.interval(scores, 4, 200)
    monkeypatch.setattr(metrics, "DRAWN", drawn)
    assert metrics.interval(scores, 4, 200) == whole


def test_memory_does_not_grow_with_the_resamples() -> None:
    scores = np.random.default_rng(1).random(20_000)
    tracemalloc.start()
    metrics.interval(scores, 0, 400)  # all at once: 64 MB of draws
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 32 << 20
