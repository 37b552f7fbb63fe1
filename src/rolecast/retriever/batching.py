"""Micro-batching: queries that arrive within a few milliseconds, or while a search is running, are searched together.

The service batches what its clients send, over an index that works in a thread of its own so that requests are read meanwhile.
A client batches what its episodes ask, since a request costs more than a search. Every caller gets one query into the batch
before any gets a second one: a long list delays others by one batch, not by all of its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rolecast import spans
from rolecast.service.errors import Overloaded
from rolecast.types import Passage

T = TypeVar("T")
Search = Callable[[Sequence[str], int], Awaitable[list[list[Passage]]]]


@dataclass(eq=False, slots=True)
class _Request:
    queries: Sequence[str]
    k: int
    done: asyncio.Future[list[list[Passage]]]
    asked_at: spans.Place
    taken: int = 0
    found: dict[int, list[Passage]] = field(default_factory=dict)


_Item = tuple[_Request, int]  # a request and the position of one of its queries


class Batcher:
    """`search` of many callers as few searches of many queries; the results are those of `search` itself.

    `most` queries in one search; `wait` seconds for company when nothing is running; more than `pending` waiting queries are
    `Overloaded`. After an error of the kind `isolated` each query of the batch is searched alone, so that only the caller whose
    fault it is gets it; any other error is everyone's. `observe` gets the size of every batch.
    """

    def __init__(
        self, search: Search, *, most: int = 64, wait: float = 0.002, pending: int | None = None,
        isolated: type[Exception] = Exception, observe: Callable[[int], None] = lambda size: None,
    ) -> None:  # fmt: skip
        self._search_all, self._most, self._wait, self._limit = search, most, wait, pending
        self._isolated, self._observe = isolated, observe
        self._requests: deque[_Request] = deque()
        self._pending = 0
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """For after the last request was answered."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None  # a cancelled task holds on to this and to what is searched, until the collector comes by

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if not queries:
            return []
        if self._limit is not None and self._pending + len(queries) > self._limit:
            raise Overloaded(f"{self._pending} queries are waiting; try again")
        request = _Request(queries, k, asyncio.get_running_loop().create_future(), spans.place())
        self._requests.append(request)
        self._pending += len(queries)
        self._arrived.set()
        try:
            return await request.done
        except BaseException:  # failed, or the caller has gone
            self._forget(request)
            raise

    def _forget(self, request: _Request) -> None:
        self._pending -= len(request.queries) - request.taken
        request.taken = len(request.queries)

    async def _work(self) -> None:
        busy = False
        while True:
            if not self._requests:
                busy = False
                self._arrived.clear()
                await self._arrived.wait()
            if not busy and self._pending < self._most:
                await asyncio.sleep(self._wait)
            batch = self._take()
            if batch:
                self._observe(len(batch))
                await self._search(batch)
            busy = True  # what arrived meanwhile has waited long enough

    def _take(self) -> list[_Item]:
        batch: list[_Item] = []
        while self._requests and len(batch) < self._most:
            request = self._requests.popleft()
            if request.done.done():
                self._forget(request)
                continue
            batch.append((request, request.taken))
            request.taken += 1
            self._pending -= 1
            if request.taken < len(request.queries):
                self._requests.append(request)
        return batch

    async def _search(self, batch: list[_Item]) -> None:
        """One search for each k: a ranking for more is not always a longer one (hybrid)."""
        by_k: dict[int, list[_Item]] = defaultdict(list)
        for item in batch:
            by_k[item[0].k].append(item)
        for k, items in by_k.items():
            try:
                await self._answer(items, k)
            except self._isolated as error:
                if len(items) == 1:
                    _fail(items, error)
                    continue
                for item in items:
                    try:
                        await self._answer([item], k)
                    except Exception as own:
                        _fail([item], own)
            except Exception as error:
                _fail(items, error)

    async def _answer(self, items: Sequence[_Item], k: int) -> None:
        queries = [request.queries[position] for request, position in items]
        first, *others = dict.fromkeys(request for request, _ in items)
        with spans.at(first.asked_at), spans.span("search together", links=[other.asked_at for other in others], queries=len(queries)):
            results = await self._search_all(queries, k)
        for (request, position), found in zip(items, results, strict=True):
            request.found[position] = found
            if len(request.found) == len(request.queries) and not request.done.done():
                request.done.set_result([request.found[n] for n in range(len(request.queries))])


def _fail(items: Sequence[_Item], error: Exception) -> None:
    for request, _ in items:
        if not request.done.done():
            request.done.set_exception(error)
