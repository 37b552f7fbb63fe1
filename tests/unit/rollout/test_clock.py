"""Whose seconds an episode's were."""

from __future__ import annotations

import pytest

from rolecast.rollout.clock import Clock


def test_seconds_of_a_part_add_up_and_what_does_not_count_is_left_out() -> None:
    times = iter([0.0, 2.0, 2.0, 5.0, 7.0, 8.0])
    clock = Clock(lambda: next(times))
    with clock.on("planner"):
        pass
    with clock.on("planner"):
        pass
    with clock.on("planner", counts=False):
        pass
    assert dict(clock.seconds) == {"planner": 5.0}


def test_what_fails_took_its_time_too() -> None:
    times = iter([0.0, 2.0])
    clock = Clock(lambda: next(times))
    with pytest.raises(ValueError, match="away"), clock.on("search"):
        raise ValueError("away")
    assert dict(clock.seconds) == {"search": 2.0}
