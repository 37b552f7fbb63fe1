"""Connections to one address, as many as requests may be under way."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property

import httpx

Connect = Callable[[ssl.SSLContext], httpx.AsyncClient]


class Lines:
    """`count` of them, each made by `connect` when it is first needed. A line is a client of its own: what one client does for a request
    grows with the square of the connections that it has, and of what waits in it."""

    def __init__(self, count: int, connect: Connect) -> None:
        self._count, self._connect = count, connect
        self._loop: asyncio.AbstractEventLoop | None = None
        self._made: list[httpx.AsyncClient] = []
        self._free: asyncio.LifoQueue[httpx.AsyncClient | None]

    @asynccontextmanager
    async def turn(self, patience: float | None = None) -> AsyncIterator[httpx.AsyncClient]:
        """A line, once one is free; of those that are, the one that was used last, since it is connected.

        TimeoutError if none is within `patience` seconds.
        """
        free = self._of_loop()
        async with asyncio.timeout(patience):
            line = await free.get()
        try:
            if line is None:
                line = self._connect(self._certificates)
                self._made.append(line)
            yield line
        finally:
            free.put_nowait(line)

    def _of_loop(self) -> asyncio.LifoQueue[httpx.AsyncClient | None]:
        """Connections belong to an event loop, and a stage may run several, one after the other. None is a line that is not made yet."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._made, self._free = loop, [], asyncio.LifoQueue()
            for _ in range(self._count):
                self._free.put_nowait(None)
        return self._free

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        """Read once: that takes as long as some ten requests."""
        return httpx.create_ssl_context()

    async def close(self) -> None:
        """Ends what is open in this loop; a later turn connects anew."""
        if self._loop is asyncio.get_running_loop():
            for line in self._made:
                await line.aclose()
        self._loop = None
