"""Connections to one address, as many as requests may be under way."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property

import httpx

Connect = Callable[[ssl.SSLContext], httpx.AsyncClient]
IDLE = 5.0  # seconds after which a line that nobody took is ended: others end theirs too


class Lines:
    """`count` of them, each made by `connect` when it is needed. A line is a client of its own: what one client does for a request grows
    with the square of the connections that it has, and of what waits in it."""

    def __init__(self, count: int, connect: Connect, clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._connect, self._clock = count, connect, clock
        self._here: _OfLoop | None = None

    @asynccontextmanager
    async def turn(self, patience: float | None = None) -> AsyncIterator[httpx.AsyncClient]:
        """A line, once there are fewer than `count` in use; of those that are free the one that was used last, since it is connected.

        TimeoutError if there is no turn within `patience` seconds.
        """
        here = self._of_loop()
        async with asyncio.timeout(patience):
            await here.turns.acquire()
        try:
            line = here.free.pop()[1] if here.free else self._connect(self._certificates)
            try:
                yield line
            finally:
                here.free.append((self._clock(), line))
        finally:
            here.turns.release()
            await here.end(before=self._clock() - IDLE)

    def _of_loop(self) -> _OfLoop:
        """Connections belong to an event loop, and a stage may run several, one after the other."""
        loop = asyncio.get_running_loop()
        if self._here is None or self._here.loop is not loop:
            self._here = _OfLoop(loop, self._count)
        return self._here

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        """Read once: that takes as long as some ten requests."""
        return httpx.create_ssl_context()

    async def close(self) -> None:
        """Ends what is open in this loop, and what is in use when it is given back. A later turn connects anew."""
        here, self._here = self._here, None
        if here is not None and here.loop is asyncio.get_running_loop():
            here.closed = True
            await here.end()


class _OfLoop:
    """`free`: lines and when they were given back, the last one last."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.loop, self.turns, self.closed = loop, asyncio.Semaphore(count), False
        self.free: deque[tuple[float, httpx.AsyncClient]] = deque()

    async def end(self, before: float = 0.0) -> None:
        """Ends the lines that were given back before; all, where this is closed."""
        while self.free and (self.closed or self.free[0][0] < before):
            await self.free.popleft()[1].aclose()
