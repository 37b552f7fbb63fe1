"""The retriever's HTTP interface over one index, with micro-batching."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from prometheus_client import Counter
from starlette.middleware import Middleware

from rolecast.errors import InputError
from rolecast.retriever.hybrid import DEEP
from rolecast.retriever.lane import Lane
from rolecast.retriever.live.serving import LiveVersion, add_live_faults
from rolecast.retriever.searching import Searching, add_search_routes, shape_of
from rolecast.retriever.settings import RetrieverSettings
from rolecast.retriever.version import Version, within
from rolecast.service.app import make_app
from rolecast.service.errors import BadRequest
from rolecast.service.state import Service
from rolecast.types import Passage
from rolecast.wire.retriever import IndexReply, PassagesRequest, RankingsReply, RankingsRequest, SwapRequest, document

log = logging.getLogger(__name__)


def make_retriever(settings: RetrieverSettings) -> tuple[FastAPI, Service]:
    service = Service.of("retriever", settings, shape_of=shape_of)
    serving = _Serving(settings, service)
    app = make_app(service, serving.live)
    if settings.live:  # seconds away, so that nothing is won by a short way, and a search that failed must not be made twice
        add_live_faults(app)
    else:
        app.user_middleware.append(Middleware(Lane, search=serving.search))  # within what every request passes, before the routes
        _add_front_routes(app, serving)
    add_search_routes(app, serving)
    _add_swap(app, serving)
    return app, service


class _Serving(Searching):
    """What is there once the index is loaded."""

    def __init__(self, settings: RetrieverSettings, service: Service) -> None:
        super().__init__(settings, service)
        self.settings: RetrieverSettings = settings
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

    @property
    def held(self) -> Version:
        assert isinstance(self.version, Version)
        return self.version

    def _tell(self) -> None:
        self.service.told = {"index": self.version.digest}

    async def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return await self.version.search(queries, k)

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        return await self.version.using(self.version.retriever.fetch(ids))

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return await self.version.embed(texts)

    def about(self) -> IndexReply:
        return self.version.about()


def _add_swap(app: FastAPI, serving: _Serving) -> None:
    @app.post("/v1/index")
    async def swap(request: SwapRequest) -> IndexReply:
        new = await asyncio.shield(asyncio.ensure_future(serving.swap(request.index)))  # a caller that leaves ends nothing
        return new.about()


def _add_front_routes(app: FastAPI, serving: _Serving) -> None:
    """What a front asks of an index; a search engine has nothing of the kind."""

    @app.post("/v1/rankings")
    async def rankings(request: RankingsRequest) -> JSONResponse:
        """What each ranker of this shard finds."""
        version, most = serving.held, DEEP * serving.settings.max_results
        if len(request.queries) * request.depth > most:
            raise InputError(f"{len(request.queries)} queries × depth = {request.depth} are more than {most} hits; send fewer queries")
        serving.check(request.queries)
        serving.queries.inc(len(request.queries))
        found = await version.rankings(request.queries, request.depth)
        return JSONResponse(RankingsReply(index=version.digest, rankings=[[list(one) for one in of] for of in found]).model_dump())

    @app.post("/v1/passages")
    async def passages(request: PassagesRequest) -> JSONResponse:
        """By row, or by id where the passage may be another shard's."""
        version = serving.held
        held = version.retriever.passages
        if outside := [row for row in request.rows if row >= len(held)]:
            raise InputError(f"row {outside[0]} is beyond the index's {len(held)} passages")
        found = [*(held[row] for row in request.rows), *version.retriever.passages_of(request.ids)]
        return JSONResponse({"index": version.digest, "passages": [passage and document(passage) for passage in found]})
