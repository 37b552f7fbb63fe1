"""Verdicts that were paid for once: in memory, and as shards of a store that replicas share.

A shard is written whole and never changed, so replicas need not agree on anything. What another one has found out and not yet written costs
a second verdict. Nobody waits for the store: it is read and written beside the requests, and one that is away only makes verdicts dearer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from threading import Lock
from typing import Any, Final

from pydantic import ValidationError

from rolecast.errors import RolecastError
from rolecast.judge.kinds import JudgeKind
from rolecast.methods.registry import judge_kind
from rolecast.ports import Judge, JudgeInfo, Store, Verdict
from rolecast.wire.judge import JudgeReply

log = logging.getLogger(__name__)
PREFIX: Final = "judge-cache/1"  # of this format
SECONDS: Final = 20.0  # between two looks at the store
MOST: Final = 500_000  # verdicts in memory, about 500 bytes each; the oldest go first


def key_of(model: str, kind: JudgeKind, inputs: Mapping[str, Any]) -> str:
    """Of who judges, with which prompt, and what the prompt is made of."""
    read = kind.read(inputs).model_dump(mode="json")
    return hashlib.sha256(json.dumps([model, kind.name, kind.digest, read], sort_keys=True).encode()).hexdigest()


@dataclass(slots=True)
class Cache:
    """`get` and `put` are for the loop of the service, `sync` is for threads beside it."""

    store: Store
    model: str
    most: int = MOST
    _known: dict[str, Verdict] = field(default_factory=dict)
    _new: list[tuple[str, Verdict]] = field(default_factory=list)
    _read: set[str] = field(default_factory=set)
    _writer: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _shards: int = 0
    _away: bool = False
    _syncing: Lock = field(default_factory=Lock)
    _keeping: Lock = field(default_factory=Lock)  # for a moment, never while the store is asked

    @property
    def prefix(self) -> str:
        return f"{PREFIX}/{hashlib.sha256(self.model.encode()).hexdigest()[:12]}"

    def get(self, key: str) -> Verdict | None:
        return self._known.get(key)

    def put(self, key: str, verdict: Verdict) -> None:
        """An unscored one is not kept: what it failed of may pass."""
        if verdict.score is not None:
            self._keep(key, verdict)
            self._new.append((key, verdict))

    def sync(self) -> None:
        """Writes what is new as a shard of its own, and reads those of others. A store that fails is warned of, once, and asked again later."""
        try:
            with self._syncing:
                self._write()
                self._read_others()
        except (RolecastError, OSError) as error:
            if not self._away:
                log.warning("verdicts are not shared: %s; the judge goes on without", error)
            self._away = True
        else:
            self._away = False

    def _write(self) -> None:
        new = self._new[:]  # more may come meanwhile
        if not new:
            return
        shard = f"{self.prefix}/{self._writer}-{self._shards:06d}.jsonl"
        lines = (json.dumps({"key": key, **JudgeReply.of(replace(verdict, tokens=0)).model_dump(mode="json")}) for key, verdict in new)
        self._read.add(shard)
        self.store.put(shard, "".join(f"{line}\n" for line in lines).encode())  # a try that failed may have been written: the same again
        self._shards += 1
        del self._new[: len(new)]

    def _read_others(self) -> None:
        for shard in self.store.keys(self.prefix):
            if shard in self._read:
                continue
            damaged = 0
            for line in (self.store.get(shard) or b"").splitlines():
                found = _verdict(line)
                damaged += found is None
                if found is not None and found[0] not in self._known:
                    self._keep(*found)
            if damaged:
                log.warning("%s: %d lines are no verdicts and are left out; delete the shard", shard, damaged)
            self._read.add(shard)

    def _keep(self, key: str, verdict: Verdict) -> None:
        with self._keeping:
            self._known[key] = replace(verdict, tokens=0)  # it costs nothing any more
            while len(self._known) > self.most:
                del self._known[next(iter(self._known))]


class _Row(JudgeReply):
    key: str


def _verdict(line: bytes) -> tuple[str, Verdict] | None:
    try:
        row = _Row.model_validate_json(line)
    except ValidationError:
        return None
    return (row.key, row.to_verdict()) if row.score is not None and isfinite(row.score) else None


class CachedJudge:
    """A judge that asks another one only what is not known. Use it as a context, in which the store is looked at every so many seconds."""

    def __init__(self, asked: Judge, cache: Cache, seconds: float = SECONDS) -> None:
        self.asked, self.cache, self.hits = asked, cache, 0
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    async def info(self) -> JudgeInfo:
        return await self.asked.info()

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        known = judge_kind(kind)
        if known is None:
            return await self.asked.judge(kind, inputs)
        key = key_of(self.cache.model, known, inputs)
        if (found := self.cache.get(key)) is not None:
            self.hits += 1
            return found
        verdict = await self.asked.judge(kind, inputs)
        self.cache.put(key, verdict)
        return verdict

    async def __aenter__(self) -> CachedJudge:
        self._task = asyncio.create_task(self._synced())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.to_thread(self.cache.sync)

    async def _synced(self) -> None:
        while True:
            await asyncio.shield(asyncio.to_thread(self.cache.sync))
            await asyncio.sleep(self._seconds)
