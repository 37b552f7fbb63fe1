"""An event loop in a thread of its own, and work that a thread does meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """For coroutines that compute and seldom wait, or that must outlive the loops of those who ask. A daemon: what hangs in it stops no exit.

    Many may ask for little, at about the same time: what goes from one thread to the other goes together, since waking a loop costs more.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._to_do = _Calls(self._loop)
        self._to_tell = self._to_do  # in the loop that asked last
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()  # else its sockets stay open until the collector comes by

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Its result, in the caller's loop. To cancel that cancels the work."""
        loop, context = asyncio.get_running_loop(), copy_context()
        promise: asyncio.Future[T] = loop.create_future()
        if (to_tell := self._to_tell).loop is not loop:
            to_tell = self._to_tell = _Calls(loop)
        tasks: list[asyncio.Task[T]] = []

        def begun() -> None:
            tasks.append(self._loop.create_task(work, context=context))
            tasks[0].add_done_callback(lambda task: to_tell.send(lambda: _settle(promise, task)))

        self._to_do.send(begun)
        promise.add_done_callback(lambda ended: self._to_do.send(lambda: tasks[0].cancel()) if ended.cancelled() else None)
        return promise

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


class OwnLoop:
    """In place of a `LoopThread`: the loop in which those who ask run anyway, by `runner`, always one after the other. Nothing goes from thread to thread,
    and what was begun stands still while nobody asks."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        return asyncio.ensure_future(work)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """From a thread in which no loop runs."""
        loop = self.runner.get_loop()
        if loop.is_running():  # in the thread that waits for this one
            return asyncio.run_coroutine_threadsafe(work, loop).result()
        return self.runner.run(work)


class _Calls:
    """Of other threads, to be made in a loop, in their order: the first one wakes it, and it makes all that came until then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._woken = False

    def send(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        if not self._woken:  # else the loop has yet to look, and will find it
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self.loop.call_soon_threadsafe(self._make)

    def _make(self) -> None:
        self._woken = False
        while self._calls:
            self._calls.popleft()()


def _settle(promise: asyncio.Future[T], task: asyncio.Task[T]) -> None:
    error = None if task.cancelled() else task.exception()  # read in any case, so that nobody is told of it once more
    if promise.done():
        return
    if task.cancelled():
        promise.cancel()
    elif error is not None:
        promise.set_exception(error)
    else:
        promise.set_result(task.result())


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
