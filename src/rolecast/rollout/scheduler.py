"""Plays many episodes at once, so that their turns meet in one batch.

Continuous: a waiting turn enters as soon as a row is free, that of a group with the fewest turns left first. Lockstep: the engine runs only when every live branch waits for
it, and serves them in one fixed order, so that the same run takes the same batches, bit for bit. For that, branches are
counted here, on the engine: never too few while anything may still ask it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from rolecast.ports import Engine

T = TypeVar("T")


class Counted(Protocol):
    """The part of an engine that tells it how many branches may ask it."""

    branches: int


class Left:
    """How many turns a group's members have left, at most. `most`: those of one episode; without it a member counts as one turn until it has
    ended. A member is never counted as less than one while it plays."""

    def __init__(self, members: Sequence[int], most: int | None) -> None:
        self._left = dict.fromkeys(members, most or 1)

    @property
    def turns(self) -> int:
        return sum(self._left.values())

    def spoke(self, member: int) -> None:
        self._left[member] = max(1, self._left[member] - 1)

    def ended(self, member: int) -> None:
        self._left[member] = 0


class Lanes:
    """At most `in_flight` episodes are live at once; the others wait in the order in which they were started."""

    def __init__(self, engine: Counted, in_flight: int) -> None:
        self._engine = engine
        self._free = in_flight
        self._queue: deque[asyncio.Future[None]] = deque()
        self._turns: dict[asyncio.Task[Any], asyncio.Future[None]] = {}  # of those that have a lane, or wait for one

    def start(self, episode: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """The episode's task. If there is room it counts from now on, before it has run."""
        turn = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            self._engine.branches += 1
            turn.set_result(None)
        else:
            self._queue.append(turn)
        task = asyncio.ensure_future(self._run(turn, episode))
        self._turns[task] = turn
        task.add_done_callback(self._end)  # not in the coroutine: a task that is cancelled early never runs it
        return task

    def leave(self) -> None:
        """The episode that calls this asks the engine no more: its lane is another's while it goes on."""
        task = asyncio.current_task()
        assert task is not None
        self._end(task)

    async def all(self, episodes: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """Results in the order of `episodes`. The first exception is raised and ends the others."""
        tasks = [self.start(episode) for episode in episodes]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await ended(tasks)

    async def _run(self, turn: asyncio.Future[None], episode: Callable[[], Awaitable[T]]) -> T:
        await turn
        return await episode()

    def _end(self, task: asyncio.Task[Any]) -> None:
        """Gives the episode's lane to the next: the count stays as it is, or lockstep would run without the one that enters."""
        turn = self._turns.pop(task, None)
        if turn is None:
            return  # it left its lane before
        if turn.cancel() or turn.cancelled():
            return  # it never had a lane
        while self._queue:
            following = self._queue.popleft()
            if not following.done():
                following.set_result(None)
                return
        self._free += 1
        self._engine.branches -= 1


async def together(branches: Sequence[Coroutine[object, object, T]], engine: Counted) -> list[T | BaseException]:
    """Results or exceptions of the branches of one episode, in order, when all are done. The caller counts as one branch.

    All are played to their end, also when one of them fails: what the others did may not depend on when that was.
    """
    if not branches:
        return []
    left = len(branches)
    engine.branches += left - 1

    def end(_: object) -> None:
        nonlocal left
        left -= 1
        if left:  # the last one's place is the caller's again
            engine.branches -= 1

    tasks = [asyncio.ensure_future(branch) for branch in branches]
    for task in tasks:
        task.add_done_callback(end)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def ended(tasks: Sequence[asyncio.Task[T]]) -> None:
    """Cancels what still runs, and waits until it is over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def play(episodes: Sequence[Callable[[], Awaitable[T]]], engine: Engine, in_flight: int) -> list[T]:
    """Results in the order of `episodes`; at most `in_flight` are live at once. An exception of any episode is raised."""
    async with engine:
        return await Lanes(engine, in_flight).all(episodes)
