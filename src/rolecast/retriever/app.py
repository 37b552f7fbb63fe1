"""The retriever's HTTP interface over one index, with micro-batching."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from prometheus_client import Counter, Histogram
from starlette.middleware import Middleware

from rolecast.errors import InputError
from rolecast.loops import LoopThread
from rolecast.retriever.batching import Batcher
from rolecast.retriever.index import LocalRetriever
from rolecast.retriever.lane import Lane
from rolecast.retriever.settings import RetrieverSettings
from rolecast.service.app import make_app
from rolecast.service.errors import Shape, openai, ours
from rolecast.service.state import Service
from rolecast.store.artifact import committed
from rolecast.store.uri import local_artifact
from rolecast.types import Passage
from rolecast.wire.retriever import (
    EmbeddingsRequest,
    FetchRequest,
    IndexReply,
    RetrieveRequest,
    SearchRequest,
    contents,
    document,
    embeddings_reply,
    retrieve_reply,
)

log = logging.getLogger(__name__)
PENDING = 16_384  # queries that may wait; clients try again


def make_retriever(settings: RetrieverSettings) -> tuple[FastAPI, Service]:
    service = Service.of("retriever", settings, shape_of=shape_of)
    serving = _Serving(settings, service)
    app = make_app(service, serving.live)
    app.user_middleware.append(Middleware(Lane, search=serving.search))  # within what every request passes, before the routes
    _add_routes(app, serving)
    return app, service


class _Serving:
    """What is there once the index is loaded."""

    retriever: LocalRetriever
    batcher: Batcher

    def __init__(self, settings: RetrieverSettings, service: Service) -> None:
        self.settings = settings
        self.worker = LoopThread("index")
        self.queries = Counter("rolecast_retriever_queries", "Queries taken.", registry=service.registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.batches = Histogram("rolecast_retriever_batch_queries", "Queries of one search.", buckets=sizes, registry=service.registry)

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        self.retriever = await self.worker.call(lambda: _open_index(self.settings))
        s = self.settings
        await self.worker.run(self.retriever.search(["ready"], s.topk))  # what a first search makes is made before anybody waits for it
        self.batcher = Batcher(
            lambda queries, k: self.worker.run(self.retriever.search(queries, k)),
            most=s.max_batch, wait=s.batch_milliseconds / 1000, pending=PENDING, observe=self.batches.observe,
        )  # fmt: skip
        self.batcher.start()
        yield
        await self.batcher.stop()
        self.worker.stop()

    async def search(self, queries: Sequence[str], topk: int | None) -> list[list[Passage]]:
        k, most = topk or self.settings.topk, self.settings.max_results
        if len(queries) * k > most:
            raise InputError(f"{len(queries)} queries × k = {k} are more than {most} passages at once; send fewer queries or lower k")
        self.check(queries)
        self.queries.inc(len(queries))
        return await self.batcher.search(queries, k)

    def check(self, texts: Sequence[str]) -> None:
        """Before anything is tokenised: a long text would hold the index's thread."""
        longest, most = max(map(len, texts), default=0), self.settings.max_text_characters
        if longest > most:
            raise InputError(f"a text has {longest} characters; send at most {most} in each")


def shape_of(path: str) -> Shape:
    return openai if path == "/v1/embeddings" else ours


def _open_index(settings: RetrieverSettings) -> LocalRetriever:
    work = Path(os.environ.get("ROLECAST_WORKDIR") or tempfile.gettempdir())
    copy = work / f"rolecast-index-{hashlib.sha256(settings.index.encode()).hexdigest()[:8]}"  # a machine may serve several
    folder = local_artifact(settings.index, copy)
    if not committed(folder):
        raise InputError(f"{folder} is no committed index; make one with `rolecast index build`, or name a run's index folder")
    retriever = LocalRetriever.open(folder, settings.kind, settings.encoder, settings.held, settings.searched_by)
    if settings.topk > len(retriever.passages):
        raise InputError(f"--topk {settings.topk} is larger than the corpus ({len(retriever.passages)} passages); lower it")
    log.info("index %s: %d passages, %s", settings.index, len(retriever.passages), retriever.kind)
    return retriever


def _add_routes(app: FastAPI, serving: _Serving) -> None:
    @app.get("/v1/index")
    async def about() -> IndexReply:
        info = await serving.retriever.info()
        return IndexReply(kind=info.kind, digest=info.digest)

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
        return JSONResponse({"result": [document(passage) for passage in await serving.retriever.fetch(request.ids)]})

    @app.post("/v1/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> JSONResponse:
        texts = [request.input] if isinstance(request.input, str) else request.input
        serving.check(texts)
        return JSONResponse(embeddings_reply(await serving.worker.run(serving.retriever.embed(texts)), request))
