"""OpenAI's routes: chat completions, as one answer or as server-sent events, and the model list."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from rolecast.agent.episodes import Episodes, Unavailable, token_counts
from rolecast.evaluation.trace import trace
from rolecast.types import Trajectory

log = logging.getLogger(__name__)
KEEP_ALIVE = 5.0  # seconds: proxies cut streams that stay silent for a minute or less
GONE = 499  # nobody reads it; it tells such requests apart in the metrics


class ChatMessage(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class ChatRequest(BaseModel):
    """The part of OpenAI's request that an agent can honour; sampling options are the server's, so they are ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str = ""
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False


def add_chat_routes(app: FastAPI, name: Callable[[], str], episodes: Episodes) -> None:
    """`name()` is the model id that clients see. The last user message is the question."""

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request) -> Response:
        if body.model not in ("", name()):
            raise HTTPException(404, f"no model {body.model!r}; this server has {name()!r}")
        asked = [message.content for message in body.messages if message.role == "user"]
        if not asked:
            raise HTTPException(422, "no message of role 'user'")
        [task] = episodes.submit(asked[-1:])
        if body.stream:
            # Proxies that buffer would hold the events back until the end.
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(_events(task, name()), media_type="text/event-stream", headers=headers)
        if not await _while_connected(request, task):
            return Response(status_code=GONE)
        return JSONResponse(_completion(task.result(), name()))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """OpenAI's list and KServe's (v1) in one: both protocols have this path, and neither minds the other's keys."""
        return {"object": "list", "data": [{"id": name(), "object": "model", "created": 0, "owned_by": "rolecast"}], "models": [name()]}


def trace_url(episode: Trajectory) -> str:
    return f"/traces/{episode.id}"


async def _while_connected(request: Request, task: asyncio.Task[Trajectory]) -> bool:
    """Waits for the task; False if the client went away first: then the task is cancelled, so that its place is free."""
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        gone.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _completion(episode: Trajectory, name: str) -> dict[str, Any]:
    read, sampled = token_counts(episode)
    return {
        "id": f"chatcmpl-{episode.id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": episode.answer or ""}, "finish_reason": _finish(episode)},
        ],
        "usage": {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled},
        "rolecast": {"status": episode.status, "trace_url": trace_url(episode), "trace": trace(episode)},
    }


def _finish(episode: Trajectory) -> str:
    return "length" if episode.status == "length" else "stop"


async def _events(task: asyncio.Task[Trajectory], name: str) -> AsyncIterator[str]:
    """The answer comes last in an episode, so there is one content chunk; comments before it keep the connection open."""
    try:
        while not (await asyncio.wait({task}, timeout=KEEP_ALIVE))[0]:
            yield ": the team is at work\n\n"
        try:
            episode = task.result()
        except Exception as error:  # the status line has been sent: OpenAI's clients raise on an event of this shape
            if not isinstance(error, Unavailable):
                log.exception("a question was not answered")
            message = str(error) if isinstance(error, Unavailable) else f"internal error: {type(error).__name__}"
            yield _event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})
            return
        head = {"id": f"chatcmpl-{episode.id}", "object": "chat.completion.chunk", "created": int(time.time()), "model": name}
        delta = {"role": "assistant", "content": episode.answer or ""}
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        ending = {"status": episode.status, "trace_url": trace_url(episode)}
        yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(episode)}], "rolecast": ending})
        yield "data: [DONE]\n\n"
    finally:
        task.cancel()  # the client has gone


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
