"""The retriever's HTTP interface over one index, with micro-batching."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from prometheus_client import Counter, Histogram
from starlette.middleware import Middleware

from rolecast.errors import InputError
from rolecast.retriever.lane import Lane
from rolecast.retriever.live.serving import LiveVersion, add_live_faults
from rolecast.retriever.settings import RetrieverSettings
from rolecast.retriever.version import Version, within
from rolecast.service.app import make_app
from rolecast.service.errors import BadRequest, Shape, openai, ours
from rolecast.service.state import Service
from rolecast.types import Passage
from rolecast.wire.retriever import (
    EmbeddingsRequest,
    FetchRequest,
    IndexReply,
    RetrieveRequest,
    SearchRequest,
    SwapRequest,
    contents,
    document,
    embeddings_reply,
    retrieve_reply,
)

log = logging.getLogger(__name__)


def make_retriever(settings: RetrieverSettings) -> tuple[FastAPI, Service]:
    service = Service.of("retriever", settings, shape_of=shape_of)
    serving = _Serving(settings, service)
    app = make_app(service, serving.live)
    if settings.live:  # seconds away, so that nothing is won by a short way, and a search that failed must not be made twice
        add_live_faults(app)
    else:
        app.user_middleware.append(Middleware(Lane, search=serving.search))  # within what every request passes, before the routes
    _add_routes(app, serving)
    return app, service


class _Serving:
    """What is there once the index is loaded."""

    def __init__(self, settings: RetrieverSettings, service: Service) -> None:
        self.settings, self.service = settings, service
        self.queries = Counter("rolecast_retriever_queries", "Queries taken.", registry=service.registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.batches = Histogram("rolecast_retriever_batch_queries", "Queries of one search.", buckets=sizes, registry=service.registry)
        self.lookups = Counter("rolecast_retriever_live", "Lookups at a search engine or of pages.", ["outcome"], registry=service.registry)
        self.swaps = Counter("rolecast_retriever_swaps", "Indexes that took the place of another.", registry=service.registry)
        self.swapping = False

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        self.version = await self._opened(self.settings.index)
        self._tell()
        yield
        await self.version.close()

    async def swap(self, place: str) -> Version | LiveVersion:
        """Opens another index beside the one that is served, and serves it once it is warm: requests that came before are answered by the
        one before, which is closed after the last of them. `InputError` if it cannot be served, or there is no room for both.
        """
        if not within(place, self.settings.swaps_from):
            allowed = f"those under {self.settings.swaps_from}" if self.settings.swaps_from else "none; start it with --swaps-from"
            raise InputError(f"{place} is not served here: POST /v1/index takes {allowed}")
        if self.swapping:
            raise BadRequest("another index is being opened; ask again when it is served")
        self.swapping = True
        try:
            new = await self._opened(place, " beside the index that is served")
        finally:
            self.swapping = False
        old, self.version = self.version, new
        self._tell()
        self.swaps.inc()
        log.info("index %s (%s) took the place of %s", place, new.digest, old.digest)
        await old.close()
        return new

    async def _opened(self, place: str, beside: str = "") -> Version | LiveVersion:
        if self.settings.live:
            return await LiveVersion.opened(self.settings, lambda outcome: self.lookups.labels(outcome).inc())
        return await Version.opened(self.settings, place, self.batches.observe, beside)

    def _tell(self) -> None:
        self.service.told = {"index": self.version.digest}

    async def search(self, queries: Sequence[str], topk: int | None) -> list[list[Passage]]:
        k, most = topk or self.settings.topk, self.settings.max_results
        if len(queries) * k > most:
            raise InputError(f"{len(queries)} queries × k = {k} are more than {most} passages at once; send fewer queries or lower k")
        self.check(queries)
        self.queries.inc(len(queries))
        return await self.version.search(queries, k)

    def check(self, texts: Sequence[str]) -> None:
        """Before anything is tokenised: a long text would hold the index's thread."""
        longest, most = max(map(len, texts), default=0), self.settings.max_text_characters
        if longest > most:
            raise InputError(f"a text has {longest} characters; send at most {most} in each")


def shape_of(path: str) -> Shape:
    return openai if path.endswith("/embeddings") else ours  # also where a client's base address is not this one's


def _add_routes(app: FastAPI, serving: _Serving) -> None:
    @app.get("/v1/index")
    async def about() -> IndexReply:
        return IndexReply(kind=serving.version.retriever.kind, digest=serving.version.digest)

    @app.post("/v1/index")
    async def swap(request: SwapRequest) -> IndexReply:
        new = await asyncio.shield(asyncio.ensure_future(serving.swap(request.index)))  # a caller that leaves ends nothing
        return IndexReply(kind=new.retriever.kind, digest=new.digest)

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> JSONResponse:
        results = await serving.search(request.queries, request.topk)
        return JSONResponse(retrieve_reply(results, request.return_scores))

    @app.post("/search")
    async def search(request: SearchRequest) -> JSONResponse:
        results = await serving.search(request.questions, request.N)
        return JSONResponse([{"top_k_docs": [contents(p.title, p.text) for p in found]} for found in results])

    @app.post("/fetch")
    async def fetch(request: FetchRequest) -> JSONResponse:
        return JSONResponse(
            {"result": [document(passage) for passage in await serving.version.using(serving.version.retriever.fetch(request.ids))]}
        )

    @app.post("/v1/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> JSONResponse:
        texts = [request.input] if isinstance(request.input, str) else request.input
        serving.check(texts)
        return JSONResponse(embeddings_reply(await serving.version.embed(texts), request))
