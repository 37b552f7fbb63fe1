"""Who is live and who waits: an engine that only notes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Self

import pytest

from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.scheduler import play


@dataclass
class Noting:
    version: str = "v"
    branches: int = 0
    entered: bool = False
    seen: list[int] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.entered = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.entered = False

    async def generate(self, request: GenerateRequest) -> Completion:
        assert self.entered
        await asyncio.sleep(0)
        self.seen.append(self.branches)
        return Completion((1,), (0.0,), "", "stop")


REQUEST = GenerateRequest((1,), "shared", 1, (), Sampling(), 0)


def test_results_keep_the_order_and_so_many_are_live() -> None:
    engine = Noting()

    async def episode(number: int) -> int:
        for _ in range(2 * number + 1):
            await engine.generate(REQUEST)
        return number

    assert asyncio.run(play([lambda n=n: episode(n) for n in range(7)], engine, 3)) == list(range(7))
    assert max(engine.seen) == 3
    assert engine.seen[0] == 3
    assert engine.seen[-1] == 1
    assert (engine.branches, engine.entered) == (0, False)


def test_the_next_episode_takes_the_place_of_one_that_ended_before_anyone_else_runs() -> None:
    """Else an engine in lockstep would serve without it when the others wait already, and with it when they do not."""
    engine = Noting()
    counts = []

    async def episode(number: int) -> None:
        counts.append(engine.branches)
        await engine.generate(REQUEST)

    asyncio.run(play([lambda n=n: episode(n) for n in range(4)], engine, 2))
    assert counts == [2, 2, 2, 2]


def test_an_error_of_one_episode_ends_all() -> None:
    engine, ended = Noting(), list[int]()

    async def episode(number: int) -> None:
        try:
            if number == 1:
                raise ValueError("no answer")
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(ValueError, match="no answer"):
        asyncio.run(play([lambda n=n: episode(n) for n in range(5)], engine, 3))
    assert sorted(ended)[:3] == [0, 1, 2]
    assert 4 not in ended  # one may have got the place of the one that failed, no more
    assert (engine.branches, engine.entered) == (0, False)
