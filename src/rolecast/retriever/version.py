"""An index that is served: opened and warm, on a thread of its own, and closed after the last request that it answers."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import posixpath
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rolecast.errors import InputError
from rolecast.loops import LoopThread
from rolecast.retriever.batching import Batcher
from rolecast.retriever.footprint import needs_memory
from rolecast.retriever.hybrid import Ranking
from rolecast.retriever.index import LocalRetriever
from rolecast.retriever.reranking import open_reranker
from rolecast.retriever.settings import RetrieverSettings
from rolecast.service.errors import NotFound
from rolecast.store.artifact import committed
from rolecast.store.uri import S3, local_artifact, open_store, place_of
from rolecast.types import Passage
from rolecast.wire.retriever import IndexReply

T = TypeVar("T")
log = logging.getLogger(__name__)
PENDING = 16_384  # queries that may wait; clients try again


class Version:
    def __init__(
        self, retriever: LocalRetriever, worker: LoopThread, digest: str, settings: RetrieverSettings, observe: Callable[[int], None]
    ) -> None:
        self.retriever, self.digest = retriever, digest
        self._worker = worker
        self._batcher = Batcher(
            lambda queries, k: worker.run(retriever.search(queries, k)),
            most=settings.max_batch, wait=settings.batch_milliseconds / 1000, pending=PENDING, observe=observe,
        )  # fmt: skip
        self._using = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    async def opened(cls, settings: RetrieverSettings, place: str, observe: Callable[[int], None], beside: str = "") -> Version:
        """`beside`: what stays open meanwhile, for messages; there must be room for both."""
        worker = LoopThread("index")
        try:
            retriever = await worker.call(lambda: _open_index(settings, place, beside))
            await worker.run(retriever.search(["ready"], settings.topk))  # what a first search makes is made before anybody waits for it
        except BaseException:
            worker.stop()
            raise
        version = cls(retriever, worker, (await retriever.info()).digest, settings, observe)
        version._batcher.start()
        return version

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return await self.using(self._batcher.search(queries, k))

    async def rankings(self, queries: Sequence[str], deep: int) -> list[tuple[Ranking, ...]]:
        """As `LocalRetriever.rankings`. Not batched: whoever asks this has batched already."""
        return await self.using(self._worker.call(lambda: self.retriever.rankings(queries, deep)))

    def about(self) -> IndexReply:
        retriever = self.retriever
        return IndexReply(
            kind=retriever.kind, digest=self.digest, passages=len(retriever.passages), shard=retriever.shard,
            encoder=retriever.built_with, reranked=retriever.reranker is not None,
        )  # fmt: skip

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return await self.using(self._worker.run(self.retriever.embed(texts)))

    async def using(self, work: Awaitable[T]) -> T:
        """The index stays open until `work` is done."""
        self._using += 1
        self._idle.clear()
        try:
            return await work
        finally:
            self._using -= 1
            if not self._using:
                self._idle.set()

    async def close(self) -> None:
        """After the last request that it answers. Nobody may ask it any more."""
        await self._idle.wait()
        await self._batcher.stop()
        self._worker.stop()


def within(place: str, parent: str) -> bool:
    """Whether an address lies under another one, whatever `..` and links it has."""
    if not parent:
        return False
    if parent.startswith(S3) != place.startswith(S3):
        return False
    if parent.startswith(S3):
        whole = place.removeprefix(S3)
        return posixpath.normpath(whole) == whole.rstrip("/") and whole.startswith(parent.removeprefix(S3).rstrip("/") + "/")
    return Path(place).resolve().is_relative_to(Path(parent).resolve())


def _is_there(place: str) -> bool:
    if not place.startswith(S3):
        return committed(Path(place))
    parent, key = place_of(place)
    return open_store(parent).committed(key)


def _open_index(settings: RetrieverSettings, place: str, beside: str) -> LocalRetriever:
    work = Path(os.environ.get("ROLECAST_WORKDIR") or tempfile.gettempdir())
    copy = work / f"rolecast-index-{hashlib.sha256(place.encode()).hexdigest()[:8]}"  # a machine may serve several
    if not _is_there(place):
        raise NotFound(f"{place} is no committed index; make one with `rolecast index build`, or name a run's index folder")
    folder = local_artifact(place, copy)
    if beside:
        needs_memory(folder, settings.held, beside)
    retriever = LocalRetriever.open(folder, settings.kind, settings.encoder, settings.held, settings.searched_by)
    if settings.reranker:
        retriever.reranker = open_reranker(settings.reranker, settings.reranker_form, settings.rerank_depth)
    if settings.topk > len(retriever.passages):
        raise InputError(f"--topk {settings.topk} is larger than the corpus ({len(retriever.passages)} passages); lower it")
    log.info("index %s: %d passages, %s", place, len(retriever.passages), retriever.kind)
    return retriever
