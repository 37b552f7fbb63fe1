"""The agent's HTTP interface: OpenAI's chat completions, a model list, health, and the trace of an answer."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from rolecast.agent.core import Agent
from rolecast.evaluation.trace import trace
from rolecast.types import Trajectory


class ChatMessage(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class ChatRequest(BaseModel):
    """The part of OpenAI's request that an agent can honour; sampling options are the server's, so they are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False


def make_app(agent: Agent, name: str) -> FastAPI:
    """`name` is the model id that clients see. The last user message is the question."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await agent.start()
        yield
        await agent.stop()

    app = FastAPI(title=f"Rolecast agent {name}", lifespan=lifespan)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: ChatRequest) -> JSONResponse | StreamingResponse:
        if request.model not in ("", name):
            raise HTTPException(404, f"no model {request.model!r}; this server has {name!r}")
        asked = [message.content for message in request.messages if message.role == "user"]
        if not asked:
            raise HTTPException(422, "no message of role 'user'")
        episode = await agent.ask(asked[-1])
        if request.stream:
            return StreamingResponse(_stream(episode, name), media_type="text/event-stream")
        return JSONResponse(_completion(episode, name))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "rolecast"}]}

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        if not agent.ready:
            raise HTTPException(503, "the engine is not running")
        return {"status": "ready"}

    return app


def _text(episode: Trajectory) -> str:
    return episode.answer or ""


def _completion(episode: Trajectory, name: str) -> dict[str, Any]:
    prompt = sum(len(thread.ids) for thread in episode.threads) - sum(len(action.ids) for action in episode.actions)
    sampled = sum(len(action.ids) for action in episode.actions)
    return {
        "id": f"chatcmpl-{episode.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": _text(episode)}, "finish_reason": _finish(episode)}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled},
        "rolecast": {"status": episode.status, "trace": trace(episode)},
    }


def _finish(episode: Trajectory) -> str:
    return "length" if episode.status == "length" else "stop"


async def _stream(episode: Trajectory, name: str) -> AsyncIterator[str]:
    """The answer comes last in an episode, so there is one content chunk."""
    head = {"id": f"chatcmpl-{episode.id}", "object": "chat.completion.chunk", "created": int(time.time()), "model": name}
    for delta, finish in (({"role": "assistant", "content": _text(episode)}, None), ({}, _finish(episode))):
        yield f"data: {json.dumps({**head, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"
    yield "data: [DONE]\n\n"
