"""Episodes that are kept as soon as they have ended, a line of JSON each, so that a command that was stopped goes on.

Once a budget is spent nothing more begins, and what is under way ends and is kept: no token that was paid for is lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

from rolecast.rollout.collect import Tell
from rolecast.rollout.scheduler import ended

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class Keeper:
    """`judged`: tokens of the judge that count against those that are `allowed`; None is no limit. `done`: episodes that are kept."""

    file: IO[bytes]
    done: int = 0
    judged: int = 0
    allowed: int | None = None

    @property
    def spent(self) -> bool:
        return self.allowed is not None and self.judged >= self.allowed

    def keep(self, row: Mapping[str, Any], judged: int) -> None:
        """On disk when it returns. `judged`: tokens that the judge took for this episode."""
        self.file.write(json.dumps(row).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.done += 1
        self.judged += judged


async def each(items: Iterable[T], play: Callable[[T, Tell], Coroutine[Any, Any, None]], at_once: int, spent: Callable[[], bool]) -> None:
    """Plays `at_once` items at a time, in their order, and begins no more once it is `spent`, which what is live then passes. The first
    exception is raised and ends the others.

    `play` is given what begins the item after it, and tells it before its lane is free; an item that does not is followed at its end. So
    there always is one that waits for the lane, few contexts are in memory, and lockstep takes the batches that it takes of all at once.
    """
    waiting, live = iter(items), set[asyncio.Task[None]]()

    def begin() -> None:
        for item in islice(waiting, 0 if spent() else 1):
            live.add(asyncio.ensure_future(one(item)))

    async def one(item: T) -> None:
        nonlocal waiting
        following = [begin]

        def told() -> None:
            if following:
                following.pop()()

        try:
            await play(item, told)
        except BaseException:
            waiting = iter(())  # what failed once would fail those after it too
            raise
        told()

    try:
        for _ in range(at_once):
            begin()
        while live:
            over, _ = await asyncio.wait(live, return_when=asyncio.FIRST_COMPLETED)
            for task in over:
                task.result()
            live -= over
    finally:
        await ended(list(live))


def mended(file: Path, name: Callable[[Any], Hashable]) -> set[Any]:
    """Names of the episodes that are done. A line that a kill cut off goes, and so do episodes in which something failed, and with a warning
    lines that are damaged: what `name` raises a ValueError, KeyError or TypeError of."""
    if not file.exists():
        return set()
    done: set[Any] = set()
    damaged = 0
    temporary = file.with_suffix(".tmp")
    with temporary.open("wb") as out:
        for line in whole_lines(file):
            try:
                row = json.loads(line)
                failed, named = row["fault"], name(row)
            except (ValueError, KeyError, TypeError):
                damaged += 1
                continue
            if not failed and named not in done:
                done.add(named)
                out.write(line)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, file)
    if damaged:
        log.warning("%s: %d damaged lines are left out; their episodes are played again", file, damaged)
    return done


def whole_lines(file: Path) -> Iterator[bytes]:
    """All but a last one that was cut off; none where there is no file."""
    if not file.exists():
        return
    with file.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line
