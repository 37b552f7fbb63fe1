"""What every service that takes searches does: refuse what is too much before it is searched, and speak the wires."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from prometheus_client import Counter, Histogram

from rolecast.errors import InputError
from rolecast.retriever.settings import SearchSettings
from rolecast.service.errors import Shape, openai, ours
from rolecast.service.state import Service
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


class Searching(ABC):
    """Limits and counts; where hits, passages and vectors come from, a subclass says."""

    def __init__(self, settings: SearchSettings, service: Service) -> None:
        self.settings, self.service = settings, service
        self.queries = Counter("rolecast_retriever_queries", "Queries taken.", registry=service.registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.batches = Histogram("rolecast_retriever_batch_queries", "Queries of one search.", buckets=sizes, registry=service.registry)

    @abstractmethod
    async def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]: ...

    @abstractmethod
    async def fetch(self, ids: Sequence[str]) -> list[Passage]: ...

    @abstractmethod
    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]: ...

    @abstractmethod
    def about(self) -> IndexReply: ...

    async def search(self, queries: Sequence[str], topk: int | None) -> list[list[Passage]]:
        k, most = topk or self.settings.topk, self.settings.max_results
        if len(queries) * k > most:
            raise InputError(f"{len(queries)} queries × k = {k} are more than {most} passages at once; send fewer queries or lower k")
        self.check(queries)
        self.queries.inc(len(queries))
        return await self.find(queries, k)

    def check(self, texts: Sequence[str]) -> None:
        """Before anything is tokenised: a long text would hold the index's thread."""
        longest, most = max(map(len, texts), default=0), self.settings.max_text_characters
        if longest > most:
            raise InputError(f"a text has {longest} characters; send at most {most} in each")


def shape_of(path: str) -> Shape:
    return openai if path.endswith("/embeddings") else ours  # also where a client's base address is not this one's


def add_search_routes(app: FastAPI, searching: Searching) -> None:
    @app.get("/v1/index")
    async def about() -> IndexReply:
        return searching.about()

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> JSONResponse:
        results = await searching.search(request.queries, request.topk)
        return JSONResponse(retrieve_reply(results, request.return_scores))

    @app.post("/search")
    async def search(request: SearchRequest) -> JSONResponse:
        results = await searching.search(request.questions, request.N)
        return JSONResponse([{"top_k_docs": [contents(p.title, p.text) for p in found]} for found in results])

    @app.post("/fetch")
    async def fetch(request: FetchRequest) -> JSONResponse:
        return JSONResponse({"result": [document(passage) for passage in await searching.fetch(request.ids)]})

    @app.post("/v1/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> JSONResponse:
        texts = [request.input] if isinstance(request.input, str) else request.input
        searching.check(texts)
        return JSONResponse(embeddings_reply(await searching.embed(texts), request))
