"""`Retriever` over a search engine of others: its wire to us is this module's business, ours to clients stays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rolecast.errors import InputError
from rolecast.ports import IndexInfo, Store
from rolecast.retriever.embeddings import Embeddings
from rolecast.retriever.live.addresses import Refused, Unread
from rolecast.retriever.live.engines import WIRES, ask_documents, read_documents
from rolecast.retriever.live.fetching import Fetcher
from rolecast.retriever.live.ledger import PREFIX, Answer, Ledger
from rolecast.retriever.live.settings import LIVE, LiveConfig
from rolecast.service.client import JsonClient, WrongPart
from rolecast.types import Passage

if TYPE_CHECKING:
    from rolecast.retriever.reranking import Reranker

log = logging.getLogger(__name__)
NOTHING = "No search results available"  # how Jina says that it found nothing: as a refusal
Seen = Callable[[str], None]


class LiveRetriever:
    """Not deterministic: what is found today is not what is found tomorrow, so every answer is recorded in `store`, if there is one.

    Scores are the engine's where it gives some, else 0; the order is the engine's. `fetch` reads pages by their addresses, or documents
    of an OpenSearch index by their ids. `embed` is `encoder`'s, as with an index of words. `seen`: is told what became of each search and
    page: "asked", "known", "read", "refused", "unread".
    """

    kind = LIVE

    def __init__(
        self, config: LiveConfig, *, store: Store | None = None, encoder: str = "minilm", reranker: Reranker | None = None,
        fetcher: Fetcher | None = None, seen: Seen = lambda what: None,
    ) -> None:  # fmt: skip
        config.key()  # one that is not there is told before anybody asks
        self.config, self.reranker, self._encoder, self._seen = config, reranker, encoder, seen
        self.ledger = Ledger(config.name, config.cache_seconds, config.budget, store)
        self._wire = WIRES[config.engine]
        self._client = JsonClient(
            config.engine, config.address, timeout=config.timeout, patience=config.patience, headers=self._headers,
            variable="retriever.live.url", concurrency=config.concurrency, outside=True, before=self._spend,
        )  # fmt: skip
        self._fetcher = fetcher or Fetcher(config.page_seconds, config.page_bytes, config.page_characters)
        self._asking: dict[tuple[str, str, int], asyncio.Future[Answer]] = {}
        self._pages: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._encoding = Lock()

    async def info(self) -> IndexInfo:
        return IndexInfo(LIVE, self.config.name)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if k < 1:
            raise InputError(f"k = {k}; ask for at least one passage")
        deep = k if self.reranker is None else max(k, min(self.reranker.depth, self._wire.most))
        found = await _all([self._searched(query, deep) for query in queries])
        if self.reranker is None:
            return [list(answer.passages[:k]) for answer in found]
        reranker, passages = self.reranker, [list(answer.passages[:deep]) for answer in found]
        return await asyncio.to_thread(lambda: [reranker(query, some, k) for query, some in zip(queries, passages, strict=True)])

    async def _searched(self, query: str, k: int) -> Answer:
        if not query.strip():
            return Answer((), k, 0.0)  # engines refuse it, and take money for it
        return await self._once("search", query, k, lambda: self._asked(query, k))

    async def _once(self, kind: str, text: str, k: int, ask: Callable[[], Any]) -> Answer:
        """Who asks what is being asked gets the same answer."""
        key = (kind, text, k)
        if (found := await self.ledger.find(kind, text, k)) is not None:
            self._seen("known")
            return found
        if (asking := self._asking.get(key)) is None:

            async def asked() -> Answer:
                return await self.ledger.keep(kind, text, k, await ask())

            asking = self._asking[key] = asyncio.ensure_future(asked())
            asking.add_done_callback(lambda done: (self._asking.pop(key, None), done.cancelled() or done.exception()))
        return await asyncio.shield(asking)  # a caller that leaves takes the answer from nobody

    async def _asked(self, query: str, k: int) -> list[Passage]:
        found: dict[str, Passage] = {}
        for page in range(self._wire.pages):
            ask = self._wire.ask(self.config, query, min(k, self._wire.most), page)
            self._seen("asked")
            new = [passage for passage in self._wire.read(self.config, await self._reply(ask.method, ask.path, ask.body)) if passage.id]
            before = len(found)
            for passage in new:
                found.setdefault(passage.id, passage)
            if len(found) >= k or len(found) == before or (self.config.engine == "google" and len(new) < self._wire.most):
                break
        return list(found.values())[:k]

    async def _reply(self, method: str, path: str, body: object) -> Mapping[str, Any]:
        try:
            reply = await self._client.request(method, path, body)
        except InputError as refusal:
            if self.config.engine == "jina" and NOTHING in str(refusal):
                return {}
            raise WrongPart(f"{self.config.engine} refuses a search: {refusal}") from None
        if not isinstance(reply, Mapping):
            raise WrongPart(f"{self.config.address} answered in another shape; is it {self.config.engine}?")
        return reply

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        """A page that cannot be read is a passage that says why: of what a search found there are always some, and the others count."""
        if self.config.engine == "opensearch":
            return await self._documents(ids)
        if strange := [id for id in ids if not id.startswith(("http://", "https://"))]:
            raise InputError(f"no passage {strange[0]!r}: {self.config.engine} knows pages by their http(s) addresses")
        return await _all([self._page(id) for id in ids])

    async def _page(self, url: str) -> Passage:
        async def read() -> list[Passage]:
            async with self._page_slots():
                return [await self._fetcher.fetch(url)]

        try:
            [passage] = (await self._once("page", url, 1, read)).passages
        except (Refused, Unread) as fault:
            outcome = "refused" if isinstance(fault, Refused) else "unread"
            self._seen(outcome)
            log.warning("a page was not read: %s", fault)
            return Passage(url, "", f"[This page was not read: {fault}]")
        self._seen("read")
        return passage

    def _page_slots(self) -> asyncio.Semaphore:
        """Of the loop that this is used in: a stage may run several, one after the other."""
        loop = asyncio.get_running_loop()
        if self._pages is None or self._pages[0] is not loop:
            self._pages = loop, asyncio.Semaphore(self.config.concurrency)
        return self._pages[1]

    async def _documents(self, ids: Sequence[str]) -> list[Passage]:
        if not ids:
            return []
        ask = ask_documents(self.config, ids)
        found = read_documents(self.config, await self._reply(ask.method, ask.path, ask.body))
        if lost := [id for id in ids if id not in found]:
            raise InputError(f"no passage {lost[0]!r} in the index {self.config.collection}")
        return [found[id] for id in ids]

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return await asyncio.to_thread(self._encoded, texts)

    def _encoded(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        with self._encoding:
            return self._embeddings.of(texts)

    @cached_property
    def _embeddings(self) -> Embeddings:
        from rolecast.retriever.encoder import Encoder

        return Embeddings(Encoder(self._encoder))

    def told(self) -> dict[str, Any]:
        """For the provenance of what was made with it: where the answers are, and when the engine gave them. None of it can be repeated."""
        begun, ended = self.ledger.between
        return {"engine": self.config.name, "answers": PREFIX, "between": [begun, ended], "deterministic": False}

    async def close(self) -> None:
        await self._client.close()

    def _headers(self) -> dict[str, str]:
        key = self.config.key()
        return {"Accept": "application/json", **(self._wire.shown(key) if key else {})}

    async def _spend(self) -> None:
        await self.ledger.spend()


async def _all(work: Sequence[Any]) -> list[Any]:
    """Results in order; the first failure is raised once all have ended, so that what was paid for is kept."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return done
