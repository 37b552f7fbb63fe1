"""Where the traces of answers are kept: the last ones in this process, and with a store all of them, for every replica.

In the store a day has a prefix of its own, so that it is deleted as one: `traces/DAY/whole/ID` is a trace, `traces/DAY/of/OWNER/ID`
its line in the list of who asked. A trace's id begins with the time of its answer, so it is found by its id alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter

from rolecast.agent.ids import born, day
from rolecast.agent.links import KEY_BYTES, Links, shared_key
from rolecast.errors import RolecastError, StoreError
from rolecast.ports import Store

log = logging.getLogger(__name__)
T = TypeVar("T")
Trace = dict[str, Any]
WRITE_SECONDS = 2.0  # that an answer waits for its trace to be in the store; a store that is away holds no answer back
READ_SECONDS = 10.0
SWEEP_SECONDS = 3600.0
MOST_WRITES = 256  # that may wait for a store that is away
MOST_UNWRITTEN = 1024  # ids of traces that the store did not take: why their links do not open
IN_LIST = ("id", "question", "answer", "status", "searches", "seconds", "answered")


@dataclass(frozen=True, slots=True)
class Kept:
    """A trace, and whose it is."""

    owner: str
    trace: Trace


class Traces:
    """Traces are kept for `days`; without a store, the last `keep` of this process. `open` before the first is added.

    Methods that read raise `StoreError` if the store does not answer in time.
    """

    def __init__(
        self, registry: CollectorRegistry, *, keep: int = 256, days: float = 7.0, store: Store | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._keep, self._seconds, self._store, self._clock = keep, days * 86400, store, clock
        self._recent: dict[str, Kept] = {}
        self._writes: set[asyncio.Task[None]] = set()
        self._unwritten: deque[str] = deque(maxlen=MOST_UNWRITTEN)
        self._threads = ThreadPoolExecutor(8, "traces")
        self._lost = Counter("rolecast_agent_traces_lost", "Traces that could not be written to the store.", registry=registry)
        self.links = Links(secrets.token_bytes(KEY_BYTES))
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if (store := self._store) is not None:
            self.links = Links(await self._in_thread(lambda: shared_key(store)))
            self._sweeper = asyncio.create_task(self._sweep_always(store))

    async def close(self) -> None:
        """Waits for what is still being written."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._writes:
            await asyncio.wait(self._writes, timeout=READ_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def add(self, trace: Trace, caller: bytes) -> str:
        """Keeps it; its link."""
        kept = Kept(self.links.owner(caller), trace)
        self._recent[trace["id"]] = kept
        while len(self._recent) > self._keep:
            del self._recent[next(iter(self._recent))]
        if self._store is not None:
            if len(self._writes) < MOST_WRITES:
                write = asyncio.create_task(self._write(self._store, kept))
                self._writes.add(write)
                write.add_done_callback(self._writes.discard)
                await asyncio.wait({write}, timeout=WRITE_SECONDS)
            else:
                self._lose(trace["id"], f"{MOST_WRITES} others wait for the store")
        return self.link(trace["id"])

    def link(self, trace_id: str) -> str:
        """Signed, and good for as long as the trace is kept."""
        return self.links.link(trace_id, int((born(trace_id) or 0.0) + self._seconds))

    def opens(self, trace_id: str, query: Mapping[str, str]) -> bool:
        """Whether `query` is that of the trace's own link, which has not expired."""
        return self.links.opens(trace_id, query.get("expires", ""), query.get("signature", ""), self._clock())

    def signed(self, trace_id: str, query: Mapping[str, str]) -> bool:
        """As `opens`, also when it has expired."""
        return self.links.signed(trace_id, query.get("expires", ""), query.get("signature", ""))

    def over(self, trace_id: str) -> bool:
        """Whether it is the id of an answer that is older than traces are kept."""
        return born(trace_id) is not None and not self._alive(trace_id)

    def why_gone(self, trace_id: str) -> str:
        """Of a trace that was made and that `find` does not find."""
        if self.over(trace_id):
            return f"traces are kept for {self._seconds / 86400:g} days (--trace-days), and this one is older"
        if self._store is None:
            return f"without --traces only the last {self._keep} of this process are kept (--keep-traces)"
        if trace_id in self._unwritten:
            return "the store did not take it when the question was answered; the service's log says why"
        return "it is not in the store: it could not be written when the question was answered, or somebody deleted it"

    async def find(self, trace_id: str) -> Kept | None:
        if not self._alive(trace_id):
            return None
        if (store := self._store) is None or trace_id in self._recent:
            return self._recent.get(trace_id)
        data = await self._read(lambda: store.get(f"traces/{day(trace_id)}/whole/{trace_id}"))
        return Kept(**json.loads(data)) if data else None

    async def latest(self, caller: bytes, before: str = "", most: int = 50) -> list[Trace]:
        """What `caller` asked, newest first, as lines of a list with their links. `before`: an id; only older ones."""
        owner = self.links.owner(caller)
        if (store := self._store) is None:
            mine = [kept.trace for kept in reversed(self._recent.values()) if kept.owner == owner]
            lines = [_line(trace) for trace in mine if not before or trace["id"] < before]
        else:
            lines = await self._read(lambda: _lines(store, owner, self._days(), before, most))
        alive = [line for line in lines if self._alive(line["id"])]
        return [{**line, "trace_url": self.link(line["id"])} for line in alive[:most]]

    async def sweep(self) -> None:
        """Deletes the days whose last trace is too old."""
        if (store := self._store) is not None:
            kept = self._days()
            days = await self._in_thread(lambda: {key.split("/")[1] for key in store.keys("traces")})
            for old in sorted(old for old in days if re.fullmatch(r"\d{8}", old) and old < min(kept)):
                # The lists first: if this is cut off, no list links to what is gone.
                for place in (f"traces/{old}/of", f"traces/{old}"):
                    await self._in_thread(partial(store.delete, place))
                log.info("the traces of %s were deleted", old)

    async def _sweep_always(self, store: Store) -> None:
        while True:
            try:
                await self.sweep()
            except RolecastError as error:
                log.warning("old traces cannot be deleted: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _write(self, store: Store, kept: Kept) -> None:
        id, trace = kept.trace["id"], kept.trace
        whole = json.dumps({"owner": kept.owner, "trace": trace}).encode()

        def put() -> None:
            store.put(f"traces/{day(id)}/whole/{id}", whole)
            store.put(f"traces/{day(id)}/of/{kept.owner}/{id}", json.dumps(_line(trace)).encode())

        try:
            await self._in_thread(put)
        except (RolecastError, OSError) as error:
            self._lose(id, str(error))

    def _lose(self, trace_id: str, why: str) -> None:
        self._lost.inc()
        self._unwritten.append(trace_id)
        log.error("trace %s is not in the store: %s", trace_id, why)

    async def _read(self, read: Callable[[], T]) -> T:
        try:
            return await asyncio.wait_for(self._in_thread(read), READ_SECONDS)
        except TimeoutError:
            raise StoreError(f"the store of the traces did not answer in {READ_SECONDS:g} s; try again") from None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _alive(self, trace_id: str) -> bool:
        made = born(trace_id)
        return made is not None and made + self._seconds > self._clock()

    def _days(self) -> list[str]:
        """Those that hold a trace that is young enough, newest first."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        oldest = (now - timedelta(seconds=self._seconds)).date()
        return [f"{now.date() - timedelta(days=n):%Y%m%d}" for n in range((now.date() - oldest).days + 1)]


def _line(trace: Trace) -> Trace:
    return {key: trace[key] for key in IN_LIST}


def _lines(store: Store, owner: str, days: list[str], before: str, most: int) -> list[Trace]:
    found: list[str] = []
    for one in days:
        keys = sorted(store.keys(f"traces/{one}/of/{owner}"), reverse=True)
        found += [key for key in keys if not before or key.rpartition("/")[2] < before]
        if len(found) >= most:
            break
    with ThreadPoolExecutor(8) as threads:
        return [json.loads(data) for data in threads.map(store.get, found[:most]) if data]
