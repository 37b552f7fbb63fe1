"""A small OpenAI-compatible server on a free port, which answers as it is told to and notes what it was asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from rolecast.service.state import Service
from tests.live import serving

KEY = "sk-very-secret"


class Endpoint:
    """Answers with `replies` in order, the last one for ever: a text, a status, a body, a whole response, or a function of what was asked."""

    def __init__(self) -> None:
        self.replies: list[Any] = ["Score: 1"]
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.delay = 0.0
        self.at_once = self.most_at_once = 0

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.delay)
        self.at_once -= 1
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if callable(reply):
            reply = reply(body)
        if isinstance(reply, Response):
            return reply
        if isinstance(reply, str):
            reply = completion(marked(reply, body))
        return JSONResponse({"error": {"message": f"refused {KEY}"}}, reply) if isinstance(reply, int) else JSONResponse(reply)


def marked(text: str, body: dict[str, Any]) -> str:
    """Score lines as a judge's prompt asks for them: with the request's mark."""
    mark = re.search(r"^Score ([0-9a-f]{8}): ", body["messages"][-1]["content"].rpartition("\n\n")[2], re.MULTILINE)
    return text.replace("Score:", f"Score {mark[1]}:") if mark else text


def completion(text: str | None, finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


@contextmanager
def answering() -> Iterator[tuple[str, Endpoint]]:
    """Its address, up to and with /v1, and what to tell it."""
    app, service, endpoint = FastAPI(), Service("endpoint"), Endpoint()
    service.status = "ready"

    @app.post("/v1/chat/completions")
    async def answer(request: Request) -> Response:
        return await endpoint.answer(request)

    with serving(app, service) as url:
        yield f"{url}/v1", endpoint
