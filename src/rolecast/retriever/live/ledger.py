"""What a search engine said, and what was spent on it: in memory, and in a store that replicas and later attempts share.

An answer is a record of its own, which names the query, the time, and every passage: it is what a run's provenance has of a source that
answers otherwise tomorrow, and nobody pays for it twice. Of the budget, blocks are taken by conditional puts, so that all who share a store
spend no more than it together; what a process that is killed had left of its block is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, Final

from rolecast.errors import NamedStop
from rolecast.ports import Store
from rolecast.types import Passage

PREFIX: Final = "live/1"  # of this format
MOST: Final = 10_000  # answers in memory; the oldest go first
BLOCK: Final = 20  # requests of a block at most


class SpentError(NamedStop):
    """The budget of requests is spent. What was answered before stays."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`asked`: how many passages the engine was asked for; fewer than that are all that it has. `at`: seconds since 1970."""

    passages: tuple[Passage, ...]
    asked: int
    at: float

    def serves(self, k: int) -> bool:
        return k <= self.asked or len(self.passages) < self.asked


@dataclass(slots=True)
class Ledger:
    """`engine`: whose answers these are (`LiveConfig.name`). Without a `store` nothing outlives the process."""

    engine: str
    seconds: float
    budget: int | None = None
    store: Store | None = None
    clock: Callable[[], float] = time.time
    between: tuple[float, float] | tuple[None, None] = (None, None)  # when the answers were given that anybody got
    left: int = 0  # of the block that was taken
    _known: OrderedDict[str, Answer] = field(default_factory=OrderedDict)
    _spent: int = 0  # by all, as far as this one knows, with what is left of blocks
    _taking: Lock = field(default_factory=Lock)

    async def find(self, kind: str, text: str, k: int) -> Answer | None:
        """What is known, and not too old, of a query or of a page's address. `kind`: search or page."""
        key = self._key(kind, text)
        if (found := self._known.get(key)) is None and self.store is not None:
            found = await asyncio.to_thread(self._stored, key)
        if found is None or self.clock() - found.at > self.seconds or not found.serves(k):
            return None
        self._remember(key, found)
        self._told(found.at)
        return found

    async def keep(self, kind: str, text: str, k: int, passages: Sequence[Passage]) -> Answer:
        """Recorded before anybody gets it."""
        answer, key = Answer(tuple(passages), k, self.clock()), self._key(kind, text)
        self._remember(key, answer)
        self._told(answer.at)
        if self.store is not None:
            record = {"engine": self.engine, "kind": kind, "text": text, "asked": k, "at": answer.at}
            passages_of = [asdict(passage) for passage in passages]
            data = json.dumps({**record, "passages": passages_of}, ensure_ascii=False).encode()
            await asyncio.to_thread(self.store.put, f"{key}/{int(answer.at * 1000):014d}.json", data)
        return answer

    async def spend(self) -> None:
        """One request. `SpentError` once there is none left."""
        while self.budget is not None:
            if self.left:
                self.left -= 1
                return
            await asyncio.to_thread(self._refill)

    def _refill(self) -> None:
        with self._taking:
            if not self.left:
                self.left = self._block()

    def _block(self) -> int:
        """How many requests the next free block has. A block's name is how many were taken before it, and it holds how many it has."""
        assert self.budget is not None
        blocks = f"{PREFIX}/spent/{_digest(self.engine)}"
        if self.store is not None and self._spent == 0 and (taken := self.store.keys(blocks)):
            self._spent = int(taken[-1].rpartition("/")[2])
        while self._spent < self.budget:
            name = f"{blocks}/{self._spent:012d}"
            size = min(max(1, min(BLOCK, self.budget // 100)), self.budget - self._spent)
            free = self.store is None or self.store.put(name, str(size).encode(), absent=True)
            self._spent += size if free or self.store is None else int(self.store.get(name) or size)
            if free:
                return size
        raise SpentError(f"{self.engine} was sent the {self.budget} requests of its budget; raise live.budget to go on")

    def _key(self, kind: str, text: str) -> str:
        return f"{PREFIX}/{kind}/{_digest(self.engine)}/{_digest(text)}"

    def _told(self, at: float) -> None:
        begun, ended = self.between
        self.between = (at if begun is None else min(begun, at), at if ended is None else max(ended, at))

    def _remember(self, key: str, answer: Answer) -> None:
        self._known[key] = answer
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._known.popitem(last=False)

    def _stored(self, key: str) -> Answer | None:
        """The newest."""
        assert self.store is not None
        keys = self.store.keys(key)
        data = self.store.get(keys[-1]) if keys else None
        return _read(data) if data is not None else None


def _read(data: bytes) -> Answer | None:
    try:
        record: Mapping[str, Any] = json.loads(data)
        return Answer(tuple(Passage(**passage) for passage in record["passages"]), int(record["asked"]), float(record["at"]))
    except (ValueError, KeyError, TypeError):
        return None  # a damaged record is as none: the engine is asked again


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]
