"""An event loop in a thread of its own, and work that a thread does meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """For coroutines that compute and seldom wait, or that must outlive the loops of those who ask. A daemon: what hangs in it stops no exit."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()  # else its sockets stay open until the collector comes by

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Its result, in the caller's loop. To cancel that cancels the work."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await self.begin(work)

    async def call(self, work: Callable[[], T]) -> T:
        async def called() -> T:
            return work()

        return await self.run(called())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for callers that are no coroutines, or that must not go on meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextmanager
def meanwhile(name: str, work: Callable[[threading.Event], None], patience: float | None = None) -> Iterator[None]:
    """`work` runs in a thread of its own until the context ends, which sets its event and waits for it, `patience` seconds at most."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)
