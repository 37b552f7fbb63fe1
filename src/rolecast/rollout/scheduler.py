"""Plays many episodes at once, so that their turns meet in the engine's batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from rolecast.ports import Engine

T = TypeVar("T")


async def play(
    episodes: Sequence[Callable[[], Awaitable[T]]], engine: Engine, in_flight: int, progress: Callable[[int], None] = lambda done: None
) -> list[T]:
    """Results in the order of `episodes`; at most `in_flight` are live at once. An exception of any episode is raised."""
    results: dict[int, T] = {}
    coming = iter(enumerate(episodes))

    async def player() -> None:
        # The next episode takes the place of the one that ended before anything else runs: which episodes are live when
        # the engine serves does not depend on when a retriever answered.
        for number, episode in coming:
            results[number] = await episode()
            progress(len(results))

    def leave(_: asyncio.Task[None]) -> None:
        engine.branches -= 1

    async with engine:
        tasks = [asyncio.create_task(player()) for _ in range(min(in_flight, len(episodes)))]
        engine.branches += len(tasks)
        for task in tasks:
            task.add_done_callback(leave)
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return [results[number] for number in range(len(episodes))]
