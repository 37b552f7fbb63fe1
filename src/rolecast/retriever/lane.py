"""The short way of a search: what most requests are is answered without the framework, which takes longer than a search by words.

Whatever is not an ordinary search goes on to the routes, with its body: malformed requests, refusals and overload are answered there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecast.errors import RolecastError
from rolecast.types import Passage
from rolecast.wire.retriever import RetrieveRequest, SearchRequest, contents, document

Find = Callable[[Sequence[str], int | None], Awaitable[list[list[Passage]]]]
PART = 64  # results that are written at once: a step's queries would hold up everybody's for the time that their reply takes


@dataclass(frozen=True, slots=True)
class _Route:
    """Stands where a route would, for metrics."""

    path: str


_ROUTES = {path: _Route(path) for path in ("/retrieve", "/search")}


class Lane:
    def __init__(self, app: ASGIApp, search: Find) -> None:
        self._app, self._search = app, search

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in _ROUTES or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        messages, fault = await _read(receive)
        whole = fault is None and messages[-1]["type"] == "http.request"  # else too large, or the caller has gone
        reply = await self._answer(scope["path"], b"".join(message.get("body", b"") for message in messages)) if whole else None
        if reply is None:
            await self._app(scope, _again(messages, fault, receive), send)
            return
        scope["route"] = _ROUTES[scope["path"]]
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(reply)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    async def _answer(self, path: str, body: bytes) -> bytes | None:
        """None where the routes are to say why there is no answer."""
        try:
            if path == "/retrieve":
                asked = RetrieveRequest.model_validate_json(body)
                found = await self._search(asked.queries, asked.topk)
                return b'{"result":[%s]}' % await _written(found, _scored if asked.return_scores else _plain)
            questions = SearchRequest.model_validate_json(body)
            return b"[%s]" % await _written(await self._search(questions.questions, questions.N), _texts)
        except (ValidationError, RolecastError):
            return None


def _is_json(scope: Scope) -> bool:
    return any(name == b"content-type" and value.partition(b";")[0].strip() == b"application/json" for name, value in scope["headers"])


async def _read(receive: Receive) -> tuple[list[Message], HTTPException | None]:
    """The messages of a request, and why no more of them are taken."""
    messages: list[Message] = []
    try:
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
    except HTTPException as fault:
        return messages, fault
    return messages, None


def _again(messages: Sequence[Message], fault: HTTPException | None, receive: Receive) -> Receive:
    """What was read already, then what comes."""
    left = iter(messages)

    async def replayed() -> Message:
        if (message := next(left, None)) is not None:
            return message
        if fault is not None:
            raise fault
        return await receive()

    return replayed


async def _written(results: Sequence[Sequence[Passage]], shown: Callable[[Sequence[Passage]], Any]) -> bytes:
    """JSON of the items of a list."""
    parts = []
    for at in range(0, len(results), PART):
        if at:
            await asyncio.sleep(0)
        parts.append(json.dumps([shown(found) for found in results[at : at + PART]], ensure_ascii=False, separators=(",", ":"))[1:-1])
    return ",".join(parts).encode()


def _plain(found: Sequence[Passage]) -> Any:
    return [document(passage) for passage in found]


def _scored(found: Sequence[Passage]) -> Any:
    return [{"document": document(passage), "score": passage.score} for passage in found]


def _texts(found: Sequence[Passage]) -> Any:
    return {"top_k_docs": [contents(passage.title, passage.text) for passage in found]}
