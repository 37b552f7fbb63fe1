"""`Retriever` over HTTP.

Searches of many episodes travel together: what is asked while a request is under way makes the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from rolecast.errors import InputError, RolecastError
from rolecast.ports import EXTERNAL, IndexInfo
from rolecast.retriever.batching import Batcher
from rolecast.service.client import JsonClient, NoSuchRoute
from rolecast.service.tokens import OwnToken
from rolecast.types import Passage
from rolecast.wire.retriever import EmbeddingsReply, FetchReply, IndexReply, ScoredReply

AT_ONCE = 256  # queries, ids or texts of one request
R = TypeVar("R", bound=BaseModel)


class HttpRetriever:
    """Waits `patience` seconds for a retriever that is restarting; searching again changes nothing, so nothing is lost."""

    def __init__(self, url: str, *, timeout: float = 30.0, patience: float = 120.0) -> None:
        self._client = JsonClient("retriever", url, timeout=timeout, patience=patience, headers=OwnToken().headers)
        self._batcher: Batcher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def info(self) -> IndexInfo:
        """Another server of this wire may not say what it serves: external, without a digest."""
        try:
            data = await self._client.get("/v1/index")
        except NoSuchRoute:
            return IndexInfo(EXTERNAL)
        try:
            return IndexReply.model_validate(data).to_info()
        except ValidationError:
            return IndexInfo(EXTERNAL)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if k < 1:  # the wire's 0 is the server's default
            raise InputError(f"k = {k}; ask for at least one passage")
        for query in queries:
            try:
                query.encode()
            except UnicodeEncodeError:  # here, since it would break the request of everyone in the batch
                raise InputError("a query holds half of a surrogate pair; send whole characters") from None
        return await self._batched().search(queries, k)

    def _batched(self) -> Batcher:
        """One for each event loop that the client is used in."""
        loop = asyncio.get_running_loop()
        if self._batcher is None or self._loop is not loop:
            # What is malformed is its caller's fault; a retriever that cannot be reached fails all who wait, once.
            self._batcher, self._loop = Batcher(self._retrieve, most=AT_ONCE, wait=0.0, isolated=InputError), loop
            self._batcher.start()
        return self._batcher

    async def _retrieve(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        body = {"queries": list(queries), "topk": k, "return_scores": True}
        reply = await self._post("/retrieve", body, ScoredReply, len(queries))
        return [[hit.document.to_passage(hit.score) for hit in hits] for hits in reply.result]

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        found: list[Passage] = []
        for part in _parts(ids):
            reply = await self._post("/fetch", {"ids": part}, FetchReply, len(part))
            found += [document.to_passage() for document in reply.result]
        return found

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        rows = []
        for part in _parts(texts) or [[]]:
            reply = await self._post("/v1/embeddings", {"input": part, "encoding_format": "base64"}, EmbeddingsReply)
            rows.append(reply.vectors())
        return np.concatenate(rows)

    async def close(self) -> None:
        if self._batcher is not None and self._loop is asyncio.get_running_loop():
            await self._batcher.stop()
        self._batcher = self._loop = None
        await self._client.close()

    async def _post(self, path: str, body: object, reply: type[R], results: int | None = None) -> R:
        data = await self._client.post(path, body)
        try:
            read = reply.model_validate(data)
        except ValidationError as error:
            raise RolecastError(
                f"{self._client.url}{path} answered in another shape ({error.error_count()} faults); is it the retriever?"
            ) from None
        if results is not None and len(read.result) != results:  # type: ignore[attr-defined]
            raise RolecastError(f"{self._client.url}{path} did not give one result per query; is it the retriever?")
        return read


def _parts(items: Sequence[str]) -> list[list[str]]:
    return [list(items[at : at + AT_ONCE]) for at in range(0, len(items), AT_ONCE)]
