"""Plays many episodes at once, so that their turns meet in one batch.

Continuous: a waiting turn enters as soon as a row is free. Lockstep: the engine runs only when every live episode waits
for it, and serves them in one fixed order, so that the same run takes the same batches, bit for bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
_NAP = 0.0005  # seconds


class Steppable(Protocol):
    """The part of an in-process engine that the scheduler drives."""

    @property
    def waiting(self) -> int: ...

    @property
    def busy(self) -> bool: ...

    def step(self, admit: bool = True) -> None: ...

    def drain(self) -> None: ...


async def play(
    episodes: Sequence[Callable[[], Awaitable[T]]],
    engine: Steppable,
    in_flight: int,
    lockstep: bool,
    progress: Callable[[int], None] = lambda done: None,
) -> list[T]:
    """Results in the order of `episodes`; at most `in_flight` are live at once. An exception of any episode is raised."""
    live = 0
    done = 0
    gate = asyncio.Semaphore(in_flight)

    async def run(episode: Callable[[], Awaitable[T]]) -> T:
        nonlocal live, done
        async with gate:
            live += 1
            try:
                return await episode()
            finally:
                live -= 1
                done += 1
                progress(done)

    tasks = [asyncio.ensure_future(run(episode)) for episode in episodes]
    everything = asyncio.gather(*tasks)
    try:
        while not everything.done():
            idle = False
            if lockstep and engine.waiting and engine.waiting == live:
                engine.drain()
            elif not lockstep and engine.busy:
                engine.step()
            else:
                idle = True
            # An idle engine leaves the processor to whoever the episodes wait for: a retriever or a judge.
            await asyncio.sleep(_NAP if idle else 0)
        return await everything
    except BaseException:
        everything.cancel()
        raise
