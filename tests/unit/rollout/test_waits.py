"""Where the time of playing went, on a clock that is told."""

from __future__ import annotations

import pytest

from rolecast.rollout.waits import Waits


def test_a_moment_is_divided_among_those_who_wait_and_time_alone_is_nobodys() -> None:
    now = [0.0]
    waits = Waits(lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    later(5)  # nobody waits
    with waits.on("sample"):
        later(2)
        with waits.on("sample"), waits.on("search"):
            later(3)  # two of three wait for the engine
        with waits.on("judge"):
            later(4)
    later(7)
    assert waits.seconds == {"sample": 2 + 2 + 2, "search": 1, "judge": 2}
    assert waits.searching == pytest.approx(1 / 9)
    assert Waits().searching == 0.0


def test_a_wait_that_fails_ends() -> None:
    now = [0.0]
    waits = Waits(lambda: now[0])
    try:
        with waits.on("search"):
            now[0] = 1
            raise OSError
    except OSError:
        pass
    now[0] = 9
    with waits.on("judge"):
        now[0] = 10
    assert waits.seconds == {"search": 1, "judge": 1}
