"""The agent service: a trained team behind OpenAI's and KServe's routes, with a page to ask and watch, and one for each answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rolecast.agent.chat import VERBS, Team, add_chat_routes
from rolecast.agent.core import Agent, Asked
from rolecast.agent.episodes import Broken, Episodes, Unavailable
from rolecast.agent.live import add_live_route
from rolecast.agent.pages import OPEN, Pages, add_pages, unlocked
from rolecast.agent.settings import AgentSettings
from rolecast.agent.traces import Traces
from rolecast.errors import InputError, RolecastError
from rolecast.externals import read_externals
from rolecast.installed import needing
from rolecast.loops import LoopThread
from rolecast.ports import Retriever, Store
from rolecast.retriever.client import HttpRetriever
from rolecast.rollout.engines.settings import read_engine
from rolecast.service.app import make_app
from rolecast.service.errors import Fault, Shape, kserve, openai, ours
from rolecast.service.replies import refusal
from rolecast.service.state import Service
from rolecast.store.local import LocalStore
from rolecast.store.uri import open_store
from rolecast.types import Trajectory

log = logging.getLogger(__name__)
PROBE_SECONDS = 5.0  # between two questions to the retriever whether it is there
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
MISSES = 3  # so often in a row it must not answer before the agent is not ready


Open = Callable[[AgentSettings, Retriever | None], Agent]


def open_team(settings: AgentSettings, retriever: Retriever | None) -> Agent:
    with needing("agent"):
        from rolecast.stages.serve import open_agent  # torch: imported while probes are answered

        return open_agent(
            settings.run, settings.stage, retriever, settings.rewriter, read_externals(settings.externals), read_engine(settings.engine)
        )


def make_agent(settings: AgentSettings, open_team: Open = open_team) -> tuple[FastAPI, Service]:
    """`open_team` loads the team, in a thread of its own; it is given the retriever service, if there is one."""
    with needing("agent"):
        from rolecast.agent.model import TeamModel, add_kserve_routes

    service = Service.of("agent", settings, shape_of=shape_of, follows_callers=True)
    serving = _Serving(settings, service, open_team)
    app = make_app(service, serving.live)
    add_chat_routes(
        app, Team(lambda: serving.name, serving.episodes, serving.shorten, lambda: serving.agent.sampling, bool(settings.rewriter))
    )  # fmt: skip
    add_live_route(app, serving.episodes)
    alone = settings.host in LOOPBACK
    add_pages(app, Pages(serving.traces, lambda: serving.name, service.tokens is not None, alone, settings.max_question_characters))
    service.pages, service.unlocked = OPEN, unlocked
    repository = add_kserve_routes(app)
    serving.loaded = lambda: repository.update(TeamModel(serving.name, serving.episodes))

    @app.exception_handler(Unavailable)
    async def unavailable(request: Request, error: Unavailable) -> JSONResponse:
        return refusal(Fault(503, str(error)), shape_of(request.url.path), {"Retry-After": "5"})

    @app.exception_handler(Broken)
    async def broken(request: Request, error: Broken) -> JSONResponse:
        return refusal(Fault(500, str(error)), shape_of(request.url.path))

    return app, service


def shape_of(path: str) -> Shape:
    """Whose clients speak to a route. What both protocols have, `/v1/models`, is OpenAI's."""
    if path == "/v2" or path.startswith("/v2/") or path.endswith(VERBS):
        return kserve
    # The last one is what OpenAI's clients ask for where their base address lacks /v1.
    return openai if path == "/v1" or path.startswith("/v1/") or path == "/chat/completions" else ours


def _trace_store(place: str) -> Store:
    """A folder is made for this user alone: it holds what others asked, and the key of links."""
    store = open_store(place)
    if isinstance(store, LocalStore):
        try:
            store.root.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{place} cannot keep traces ({error.strerror}); name another folder by --traces") from None
    return store


class _Serving:
    """The team in its thread, and whether it can answer."""

    name: str = ""
    agent: Agent
    loaded: Callable[[], Any]

    def __init__(self, settings: AgentSettings, service: Service, open_team: Open) -> None:
        s = self.settings = settings
        self.service, self._open = service, open_team
        self.worker = LoopThread("team")
        self.retriever = HttpRetriever(s.retriever_url, patience=s.retriever_patience) if s.retriever_url else None
        self.traces = Traces(service.registry, keep=s.keep_traces, days=s.trace_days, store=_trace_store(s.traces) if s.traces else None)
        self.episodes = Episodes(
            self._ask, self.traces, max_live=s.max_live, max_waiting=s.max_waiting, registry=service.registry,
            max_characters=s.max_question_characters, log_questions=s.log_questions,
        )  # fmt: skip

    async def _ask(self, asked: Asked) -> Trajectory:
        return await self.worker.run(self.agent.ask(asked))

    async def shorten(self, text: str, tokens: int) -> str:
        """In the team's thread, as all that its tokenizer does: it is not made for two at once."""
        return await self.worker.call(lambda: self.agent.first_tokens(text, tokens))

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        await self.traces.open()
        self.agent = await self.worker.call(lambda: self._open(self.settings, self.retriever))
        self.name = self.settings.model_name or self.agent.name
        self.loaded()
        await self.worker.run(self.agent.start())
        watch = asyncio.create_task(self._watch_engine())
        try:
            async with self._searchable():
                yield
        finally:
            watch.cancel()
            await self.traces.close()
            await self.worker.run(self._close())
            self.worker.stop()

    async def _close(self) -> None:
        await self.agent.stop()
        if self.retriever is not None:
            await self.retriever.close()

    async def _watch_engine(self) -> None:
        """A server without its engine ends, so that it is started again."""
        error = await self.worker.run(self.agent.failed())
        log.error("the engine failed", exc_info=error)
        self.service.failure = error

    @asynccontextmanager
    async def _searchable(self) -> AsyncIterator[None]:
        """Begins once the retriever answers; until the end, readiness follows the retriever's."""
        if not self.settings.retriever_url:
            yield
            return
        probe = HttpRetriever(self.settings.retriever_url, timeout=PROBE_SECONDS, patience=0)
        watch = None
        try:
            if error := await _fault(probe):
                log.warning("not ready until the retriever answers: %s", error)
                while await _fault(probe):
                    await asyncio.sleep(1.0)
            watch = asyncio.create_task(self._watch_retriever(probe))
            yield
        finally:
            if watch is not None:
                watch.cancel()
            await probe.close()

    async def _watch_retriever(self, probe: HttpRetriever) -> None:
        misses = 0
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            error = await _fault(probe)
            misses = misses + 1 if error else 0
            if misses == MISSES and self.service.status == "ready":
                log.warning("not ready until the retriever answers: %s", error)
                self.service.status = "starting"
            elif not misses and self.service.status == "starting":
                log.info("the retriever answers again")
                self.service.status = "ready"


async def _fault(retriever: HttpRetriever) -> str:
    """Why a search fails, or the empty string. It searches, since retrievers with the same wire may have no probe."""
    try:
        await retriever.search(["ready"], 1)
    except RolecastError as error:
        return str(error)
    return ""
