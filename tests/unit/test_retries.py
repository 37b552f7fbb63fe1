"""How long is waited between tries: longer each time, not for ever, and as long as the other side asks."""

from __future__ import annotations

from rolecast.retries import LONGEST_WAIT, Tries


def waits(patience: float, asked: float = 0.0) -> list[float]:
    now, slept = 0.0, []
    tries = Tries(patience, lambda: now)
    while (pause := tries.pause(asked)) is not None:
        slept.append(pause)
        now += pause
    assert tries.count == len(slept) + 1
    return slept


def test_waits_grow_to_a_bound_and_end_with_patience() -> None:
    slept = waits(60.0)
    assert 0.1 <= slept[0] <= 0.15
    assert slept[0] < slept[2] < slept[4]
    assert max(slept) <= 1.5 * LONGEST_WAIT
    assert 50 < sum(slept) <= 60


def test_without_patience_there_is_one_try() -> None:
    assert waits(0.0) == []


def test_the_other_side_may_ask_for_more() -> None:
    assert 7 <= waits(60.0, asked=7.0)[0] <= 10.5
    assert waits(60.0, asked=61.0) == []
