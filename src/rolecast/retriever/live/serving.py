"""A search engine behind the retriever's interface, where an index would be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rolecast.retriever.live.ledger import SpentError
from rolecast.retriever.live.search import LiveRetriever, Seen
from rolecast.retriever.reranking import open_reranker
from rolecast.retriever.settings import RetrieverSettings
from rolecast.service.client import NoAnswer, WrongPart
from rolecast.service.errors import Fault, Overloaded, always_ours
from rolecast.service.replies import refusal
from rolecast.store.uri import open_store
from rolecast.types import Passage
from rolecast.wire.retriever import IndexReply

T = TypeVar("T")
log = logging.getLogger(__name__)
PENDING = 4096  # queries that may wait; clients try again


class LiveVersion:
    """As `Version`. Queries are not put together: an engine takes one at a time, and several at once."""

    def __init__(self, retriever: LiveRetriever) -> None:
        self.retriever, self.digest = retriever, retriever.config.name
        self._waiting = 0

    @classmethod
    async def opened(cls, settings: RetrieverSettings, seen: Seen) -> LiveVersion:
        """Nothing is asked of the engine: that may cost money, and it may be away for a while."""
        config = settings.live_config()
        assert config is not None
        store = open_store(settings.live_record) if settings.live_record else None
        reranker = None
        if settings.reranker:
            reranker = await asyncio.to_thread(open_reranker, settings.reranker, settings.reranker_form, settings.rerank_depth)
        log.info("asking %s at %s; answers are kept in %s", config.name, config.address, settings.live_record or "memory alone")
        return cls(LiveRetriever(config, store=store, encoder=settings.encoder or "minilm", reranker=reranker, seen=seen))

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if self._waiting + len(queries) > PENDING:
            raise Overloaded(f"{self._waiting} queries are waiting; try again")
        self._waiting += len(queries)
        try:
            return await self.retriever.search(queries, k)
        finally:
            self._waiting -= len(queries)

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return await self.retriever.embed(texts)

    def about(self) -> IndexReply:
        return IndexReply(kind=self.retriever.kind, digest=self.digest, reranked=self.retriever.reranker is not None)

    async def using(self, work: Awaitable[T]) -> T:
        return await work

    async def close(self) -> None:
        await self.retriever.close()


def add_live_faults(app: FastAPI) -> None:
    """What an engine fails of is told apart: our clients try a 503 again, which costs a request, and no other one of these."""

    def reply(status: int, error: Exception, **headers: str) -> JSONResponse:
        return refusal(Fault(status, str(error)), always_ours("/"), {name.replace("_", "-"): value for name, value in headers.items()})

    @app.exception_handler(SpentError)
    async def spent(request: Request, error: SpentError) -> JSONResponse:
        return reply(402, error)

    @app.exception_handler(WrongPart)
    async def refused(request: Request, error: WrongPart) -> JSONResponse:
        return reply(424, error)

    @app.exception_handler(NoAnswer)
    async def away(request: Request, error: NoAnswer) -> JSONResponse:
        return reply(503, error, Retry_After="5")
