"""The judge's HTTP interface: one route over the lexical rules or over a language model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from fastapi import FastAPI
from prometheus_client import Counter
from pydantic import Field, model_validator

from rolecast.judge.lexical import LexicalJudge
from rolecast.judge.openai import OpenAIJudge
from rolecast.methods.registry import judge_kind
from rolecast.ports import Judge
from rolecast.service.app import Service, make_app
from rolecast.service.settings import ServiceSettings
from rolecast.wire.judge import JudgeReply, JudgeRequest


class JudgeSettings(ServiceSettings):
    """The key of the endpoint is no setting: it is read from OPENAI_API_KEY, so that it cannot be given on a command line."""

    judge_backend: Literal["lexical", "openai"] = "lexical"
    judge_openai_url: str | None = None  # up to and with /v1
    judge_openai_model: str | None = None
    judge_openai_concurrency: int = Field(16, ge=1)
    judge_openai_timeout: float = Field(30.0, gt=0)  # seconds of one try
    judge_openai_patience: float = Field(60.0, ge=0)  # seconds of trying
    judge_openai_max_tokens: int = Field(512, ge=16)

    @model_validator(mode="after")
    def _whole(self) -> JudgeSettings:
        if self.judge_backend == "openai" and not (self.judge_openai_url and self.judge_openai_model):
            raise ValueError("the openai backend needs ROLECAST_JUDGE_OPENAI_URL and ROLECAST_JUDGE_OPENAI_MODEL")
        return self


def open_judge(settings: JudgeSettings, environ: Mapping[str, str] = os.environ) -> LexicalJudge | OpenAIJudge:
    if settings.judge_backend == "lexical":
        return LexicalJudge()
    s = settings
    return OpenAIJudge(
        s.judge_openai_url or "", s.judge_openai_model or "", environ.get("OPENAI_API_KEY", ""), concurrency=s.judge_openai_concurrency,
        timeout=s.judge_openai_timeout, patience=s.judge_openai_patience, max_tokens=s.judge_openai_max_tokens,
    )  # fmt: skip


def make_judge(settings: JudgeSettings, judge: Judge | None = None) -> tuple[FastAPI, Service]:
    service = Service.of("judge", settings)
    behind = judge or open_judge(settings)
    verdicts = Counter("rolecast_judge_verdicts", "Verdicts by kind.", ["kind", "scored"], registry=service.registry)

    @asynccontextmanager
    async def live() -> AsyncIterator[None]:
        yield
        if isinstance(behind, OpenAIJudge):
            await behind.close()

    app = make_app(service, live)

    @app.post("/v1/judge")
    async def judged(request: JudgeRequest) -> JudgeReply:
        verdict = await behind.judge(request.kind, request.read())
        # Kinds come from clients: only known ones are series of their own.
        verdicts.labels(request.kind if judge_kind(request.kind) else "other", str(verdict.score is not None).lower()).inc()
        return JudgeReply(score=verdict.score, reason=verdict.reason)

    return app, service
