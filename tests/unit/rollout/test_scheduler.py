"""Lanes, lockstep and the counting of branches: what runs when, and that the same run takes the same batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

import pytest
from parallel import Late, Parallel, collector, question

from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.collect import Episode
from rolecast.rollout.scheduler import Lanes, play
from rolecast.types import Trajectory

EPISODES = [Episode(question(number), f"0:q{number}", member) for number in range(3) for member in range(2)]


class Counter:
    """Stands where an engine in lockstep would. `batches`: how many waited each time that all did."""

    version = "v"

    def __init__(self) -> None:
        self.branches = 0
        self.queue: list[asyncio.Future[None]] = []
        self.batches: list[int] = []

    async def __aenter__(self) -> Self:
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._driver.cancel()

    async def generate(self, request: GenerateRequest) -> Completion:
        raise NotImplementedError

    async def ask(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self.queue.append(future)
        await future

    async def _drive(self) -> None:
        while True:
            await asyncio.sleep(0)
            if 0 < self.branches == len(self.queue):
                self.batches.append(len(self.queue))
                for future in self.queue:
                    future.set_result(None)
                self.queue = []


def played(late: int, in_flight: int = 4, lockstep: bool = True) -> list[Trajectory]:
    return collector(Parallel(), Late(late), in_flight=in_flight, lockstep=lockstep).collect(EPISODES, Sampling(1.0), "train")


@pytest.mark.parametrize("in_flight", [1, 4])
def test_in_lockstep_a_retriever_that_answers_late_and_out_of_order_changes_no_bit(in_flight: int) -> None:
    once, again = played(1, in_flight), played(2, in_flight)
    assert [t.status for t in once] == ["ok"] * 6
    assert once == again  # ids, texts, log-probs, states, what was retrieved and in which order
    assert [len(t.threads) for t in once] == [10] * 6
    assert sum(len(action.ids) for t in once for action in t.actions) > 200


def test_continuous_play_draws_the_same_tokens_in_the_same_records() -> None:
    for ours, theirs in zip(played(1), played(3, lockstep=False), strict=True):
        assert [thread.ids for thread in ours.threads] == [thread.ids for thread in theirs.threads]
        assert (ours.retrieved, ours.searches) == (theirs.retrieved, 9)


def test_the_next_episode_takes_the_place_of_one_that_ended_before_lockstep_runs_again() -> None:
    engine = Counter()

    def job(turns: int) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            for _ in range(turns):
                await engine.ask()
            return turns

        return run

    assert asyncio.run(play([job(n) for n in (1, 3, 2, 0, 2)], engine, 2)) == [1, 3, 2, 0, 2]
    assert engine.batches == [2, 2, 2, 1, 1]  # 1+3, 3+2, 3+2, 2, 2
    assert engine.branches == 0


def test_no_more_episodes_are_live_than_there_are_lanes() -> None:
    engine, live, most = Counter(), 0, 0

    async def job() -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        assert engine.branches == 3
        await asyncio.sleep(0.001)
        live -= 1

    async def many() -> None:
        await Lanes(engine, 3).all([job] * 9)

    asyncio.run(many())
    assert (most, engine.branches) == (3, 0)


def test_lanes_are_free_again_when_their_episodes_are_over() -> None:
    engine = Counter()

    async def job() -> int:
        return engine.branches

    async def many() -> list[list[int]]:
        lanes = Lanes(engine, 2)
        return [await asyncio.wait_for(lanes.all([job] * 4), 5) for _ in range(2)]

    assert asyncio.run(many()) == [[2, 2, 2, 2]] * 2


def test_an_exception_ends_the_other_episodes_and_gives_every_lane_back() -> None:
    engine, ends = Counter(), []

    async def forever() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ends.append("cancelled")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def many() -> None:
        with pytest.raises(ValueError, match="no"):
            await Lanes(engine, 3).all([forever, forever, fail, forever])

    asyncio.run(many())
    assert len(ends) >= 2  # and the one that waited, if it had got the lane of the one that failed
    assert engine.branches == 0
