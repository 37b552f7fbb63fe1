"""The judge's HTTP interface: one route over the lexical rules or over a language model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI
from prometheus_client import Counter, Gauge

from rolecast.judge.cache import Cache, CachedJudge
from rolecast.judge.ensemble import EnsembleJudge
from rolecast.judge.lexical import LexicalJudge
from rolecast.judge.openai import OpenAIJudge
from rolecast.judge.pace import Pace
from rolecast.judge.settings import JudgeSettings
from rolecast.methods.registry import judge_kind
from rolecast.ports import Judge
from rolecast.service.app import make_app
from rolecast.service.state import Service
from rolecast.store.uri import open_store
from rolecast.wire.judge import JudgeAbout, JudgeReply, JudgeRequest


def open_judge(settings: JudgeSettings, environ: Mapping[str, str] = os.environ) -> Judge:
    """With a cache before it, if the settings name a store. `InputError` for one that cannot be spoken to."""
    if settings.judge_backend == "lexical":
        return LexicalJudge()
    key = environ.get("OPENAI_API_KEY", "")
    models = [name.strip() for name in settings.judge_openai_model.split(",")] if settings.judge_backend == "ensemble" else []
    members = {name: _of_model(settings, name, key) for name in models}
    asked = EnsembleJudge(members) if members else _of_model(settings, settings.judge_openai_model, key)
    if not settings.judge_cache:
        return asked
    name = "+".join(members) or settings.judge_openai_model
    return CachedJudge(asked, Cache(open_store(settings.judge_cache, environ), name))


def _of_model(s: JudgeSettings, model: str, key: str) -> OpenAIJudge:
    return OpenAIJudge(
        s.judge_openai_url, model, key, concurrency=s.judge_openai_concurrency, timeout=s.judge_openai_timeout,
        patience=s.judge_openai_patience, max_tokens=s.judge_openai_max_tokens,
        pace=Pace(s.judge_openai_rate, s.judge_openai_token_rate), queue=s.judge_openai_queue,
    )  # fmt: skip


@asynccontextmanager
async def at_work(judge: Judge) -> AsyncIterator[None]:
    """In here its cache is shared; at the end its connections are closed."""
    async with AsyncExitStack() as stack:
        asked = judge
        if isinstance(asked, CachedJudge):
            await stack.enter_async_context(asked)
            asked = asked.asked
        if isinstance(asked, OpenAIJudge | EnsembleJudge):
            stack.push_async_callback(asked.close)
        yield


def make_judge(settings: JudgeSettings, judge: Judge | None = None) -> tuple[FastAPI, Service]:
    service = Service.of("judge", settings)
    behind = judge or open_judge(settings)
    if isinstance(behind, CachedJudge):
        hits = Gauge("rolecast_judge_cached", "Verdicts that were known and asked of nobody.", registry=service.registry)
        hits.set_function(lambda: behind.hits)
    verdicts = Counter("rolecast_judge_verdicts", "Verdicts by kind.", ["kind", "scored"], registry=service.registry)

    @asynccontextmanager
    async def live() -> AsyncIterator[None]:
        async with at_work(behind):
            yield

    app = make_app(service, live)

    @app.get("/v1/judge")
    async def about() -> JudgeAbout:
        info = await behind.info()
        return JudgeAbout(model=info.model, prompts=dict(info.prompts))

    @app.post("/v1/judge")
    async def judged(request: JudgeRequest) -> JudgeReply:
        verdict = await behind.judge(request.kind, request.read())
        # Kinds come from clients: only known ones are series of their own.
        verdicts.labels(request.kind if judge_kind(request.kind) else "other", str(verdict.score is not None).lower()).inc()
        return JudgeReply.of(verdict)

    return app, service
