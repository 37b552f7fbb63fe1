"""One retriever in front of the shards of an index: every shard is asked, and their rankings are merged into those of the whole index.

An answer is the whole index's or none at all: a shard that is away, or that serves another index by now, is an error (503), never left out.
Rankings are merged before they are fused, so hybrid search ranks as one index would; equal scores go by the order of the corpus.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from rolecast.errors import InputError, RolecastError
from rolecast.retriever.batching import Batcher
from rolecast.retriever.hybrid import Ranking, depth, fused
from rolecast.retriever.index import all_found
from rolecast.retriever.searching import Searching, add_search_routes, shape_of
from rolecast.retriever.settings import FrontSettings
from rolecast.retriever.version import PENDING
from rolecast.service.app import make_app
from rolecast.service.client import JsonClient, NoAnswer, WrongPart
from rolecast.service.errors import Fault
from rolecast.service.replies import refusal
from rolecast.service.state import Service
from rolecast.service.tokens import OwnToken
from rolecast.types import Passage
from rolecast.wire.retriever import MOST, EmbeddingsReply, IndexReply, PassagesReply, RankingsReply

log = logging.getLogger(__name__)
R = TypeVar("R", bound=BaseModel)
Hit = tuple[int, int, float]  # shard, row there, score


class ShardError(RolecastError):
    """A shard cannot do its part, so there is no answer; asking again may help."""


def make_front(settings: FrontSettings) -> tuple[FastAPI, Service]:
    service = Service.of("retriever", settings, shape_of=shape_of)
    front = _Front(settings, service)
    app = make_app(service, front.live)
    add_search_routes(app, front)

    async def without_a_shard(request: Request, error: Exception) -> JSONResponse:
        return refusal(Fault(503, str(error)), shape_of(request.url.path))

    for kind in (ShardError, NoAnswer, WrongPart):
        app.add_exception_handler(kind, without_a_shard)
    return app, service


@dataclass(frozen=True, slots=True)
class _Shard:
    """`first`: the row of its first passage in the whole."""

    client: JsonClient
    digest: str
    first: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """The shards in the order of the corpus, and what they are together."""

    shards: tuple[_Shard, ...]
    about: IndexReply
    rankers: int


class _Front(Searching):
    def __init__(self, settings: FrontSettings, service: Service) -> None:
        super().__init__(settings, service)
        urls = settings.shards.replace(",", " ").split()
        if not urls or len(set(urls)) < len(urls):
            raise InputError("--shards names no shard, or one twice; give the address of each shard's service once")
        headers = OwnToken().headers
        self._clients = [
            JsonClient("shard", url, patience=settings.patience, headers=headers, variable="--shards (ROLECAST_SHARDS)") for url in urls
        ]
        self._known: _Layout | None = None
        self._batcher = Batcher(
            self._merged, most=settings.max_batch, wait=settings.batch_milliseconds / 1000, pending=PENDING, isolated=InputError,
            observe=self.batches.observe,
        )  # fmt: skip

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        layout = self._known = await self._look()
        self._tell(layout)
        log.info("%d shards, %d passages, %s", len(layout.shards), layout.about.passages, layout.about.kind)
        self._batcher.start()
        yield
        await self._batcher.stop()
        for client in self._clients:
            await client.close()

    def about(self) -> IndexReply:
        if self._known is None:
            raise ShardError("a shard serves another index since the last search; ask again")
        return self._known.about

    async def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return await self._batcher.search(queries, k)

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        layout = await self._layout()
        held = await asyncio.gather(*(self._passages(shard, {"ids": list(ids)}) for shard in layout.shards))
        return all_found(ids, [next((one for one in of if one is not None), None) for of in zip(*held, strict=True)])

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        layout = await self._layout()  # whose encoders are all the same
        reply = await _asked(
            layout.shards[0].client, "/v1/embeddings", {"input": list(texts), "encoding_format": "base64"}, EmbeddingsReply
        )
        return reply.vectors()

    async def _layout(self) -> _Layout:
        """What the shards are. After one of them has changed they are looked at anew: until all have, there is no answer."""
        if self._known is None:
            try:
                self._known = await self._look()
            except InputError as error:  # no fault of who searches
                raise ShardError(str(error)) from None
            self._tell(self._known)
        return self._known

    async def _look(self) -> _Layout:
        """`InputError` if they do not belong together."""
        found = await asyncio.gather(*(_got(client) for client in self._clients))
        return _layout_of(self._clients, found)

    def _tell(self, layout: _Layout) -> None:
        self.service.told = {"index": layout.about.digest}

    async def _merged(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        layout = await self._layout()
        k = min(k, layout.about.passages)
        deep = depth(layout.rankers, k)
        body = {"queries": list(queries), "depth": deep}
        replies = await asyncio.gather(*(_asked(shard.client, "/v1/rankings", body, RankingsReply) for shard in layout.shards))
        for shard, reply in zip(layout.shards, replies, strict=True):
            self._same(shard, reply.index)
            if len(reply.rankings) != len(queries) or any(len(of_query) != layout.rankers for of_query in reply.rankings):
                raise ShardError(f"the shard at {shard.client.url} did not rank each query by each ranker; is it of this version?")
        firsts = [shard.first for shard in layout.shards]
        hits = [fused(merged([reply.rankings[n] for reply in replies], firsts, deep), k) for n in range(len(queries))]
        passages = await self._by_row(layout, {row for of_query in hits for row, _ in of_query})
        return [[replace(passages[row], score=score) for row, score in of_query] for of_query in hits]

    async def _by_row(self, layout: _Layout, rows: Iterable[int]) -> dict[int, Passage]:
        firsts = [shard.first for shard in layout.shards]
        of_shard: dict[int, list[int]] = {}
        for row in sorted(rows):
            of_shard.setdefault(int(np.searchsorted(firsts, row, "right")) - 1, []).append(row)
        asked = [(layout.shards[number], part[at : at + MOST]) for number, part in of_shard.items() for at in range(0, len(part), MOST)]
        found = await asyncio.gather(*(self._passages(shard, {"rows": [row - shard.first for row in part]}) for shard, part in asked))
        return {row: passage for (_, part), of in zip(asked, found, strict=True) for row, passage in zip(part, of, strict=True) if passage}

    async def _passages(self, shard: _Shard, which: dict[str, Any]) -> list[Passage | None]:
        reply = await _asked(shard.client, "/v1/passages", which, PassagesReply)
        self._same(shard, reply.index)
        return [None if document is None else document.to_passage() for document in reply.passages]

    def _same(self, shard: _Shard, digest: str) -> None:
        if digest != shard.digest:
            self._known = None  # the next request looks whether all have changed
            raise ShardError(f"the shard at {shard.client.url} serves another index ({digest}) than it did ({shard.digest}); ask again")


def merged(rankings: Sequence[Sequence[Ranking]], firsts: Sequence[int], deep: int) -> list[Ranking]:
    """By shard and ranker, to by ranker: the first `deep` of the whole, in rows of the whole; equal scores in the order of the corpus."""
    by_ranker = zip(*rankings, strict=True)
    return [
        sorted(((first + row, score) for first, ranking in zip(firsts, of, strict=True) for row, score in ranking), key=lambda hit: (-hit[1], hit[0]))[:deep]
        for of in by_ranker
    ]  # fmt: skip


def _layout_of(clients: Sequence[JsonClient], found: Sequence[IndexReply]) -> _Layout:
    """`InputError` names the shard that does not belong to the others, whose scores do not compare with theirs, or that is not there."""
    pairs = list(zip(clients, found, strict=True))
    for client, about in pairs:
        if about.reranked:
            raise InputError(
                f"the shard at {client.url} reads its hits again by a reranker, which a front cannot merge; start it without one"
            )
        if about.kind != found[0].kind:
            raise InputError(
                f"the shard at {client.url} serves {about.kind}, that at {clients[0].url} {found[0].kind}; give all one --kind"
            )
    rankers = 2 if found[0].kind == "hybrid" else 1
    if all(about.shard is None for about in found) and found[0].kind == "dense":
        return _of_dense(pairs)
    numbers: dict[int, str] = {}
    of, whole = 0, ""
    for client, about in pairs:
        if about.shard is None:
            raise InputError(
                f"the index at {client.url} is no shard of another: its words have weights of their own, so its {about.kind} scores do not "
                "compare with others'; cut one index by `rolecast index split`"
            )
        of, whole = of or about.shard.of, whole or about.shard.whole
        if about.shard.whole != whole:
            raise InputError(
                f"the shard at {client.url} is of the index {about.shard.whole}, that at {clients[0].url} of {whole}; name shards of one index"
            )
        if other := numbers.get(about.shard.number):
            raise InputError(f"{client.url} and {other} serve the same shard, number {about.shard.number} of {of}; name each once")
        numbers[about.shard.number] = client.url
    if missing := [number for number in range(of) if number not in numbers]:
        raise InputError(f"shard {missing[0]} of {of} is not among --shards; name the services of all")
    ordered = sorted(((about.shard, client, about) for client, about in pairs if about.shard), key=lambda one: one[0].first)
    shards = tuple(_Shard(client, about.digest, shard.first) for shard, client, about in ordered)
    first = ordered[0][2]
    return _Layout(shards, IndexReply(kind=first.kind, digest=whole, passages=ordered[0][0].passages, encoder=first.encoder), rankers)


def _of_dense(pairs: Sequence[tuple[JsonClient, IndexReply]]) -> _Layout:
    """Indexes that were built apart, of vectors of one encoder, in the order in which they are named."""
    encoder, at, shards = pairs[0][1].encoder, 0, list[_Shard]()
    for client, about in pairs:
        if not about.encoder or about.encoder != encoder:
            raise InputError(
                f"the index at {client.url} does not say that it has the encoder of {pairs[0][0].url}, so their scores do not compare"
            )
        shards.append(_Shard(client, about.digest, at))
        at += about.passages
    digest = hashlib.sha256(" ".join(shard.digest for shard in shards).encode()).hexdigest()[: len(shards[0].digest)]
    return _Layout(tuple(shards), IndexReply(kind="dense", digest=digest, passages=at, encoder=encoder), 1)


async def _got(client: JsonClient) -> IndexReply:
    return _read(client, "/v1/index", IndexReply, await client.get("/v1/index"))


async def _asked(client: JsonClient, path: str, body: object, reply: type[R]) -> R:
    return _read(client, path, reply, await client.post(path, body))


def _read(client: JsonClient, path: str, reply: type[R], data: object) -> R:
    try:
        return reply.model_validate(data)
    except ValidationError as error:
        raise ShardError(f"{client.url}{path} answered in another shape ({error.error_count()} faults); is it a retriever?") from None
