"""OpenAI's routes: chat completions, as one answer or as server-sent events, and the models."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, Response, StreamingResponse

from rolecast.agent.core import Asked
from rolecast.agent.episodes import Answer, Broken, Episodes, Unavailable, token_counts
from rolecast.ports import Sampling
from rolecast.service.errors import BadRequest, Fault, NotFound, openai
from rolecast.types import Trajectory
from rolecast.wire.chat import ChatRequest

VERBS = (":predict", ":explain")  # of KServe's v1, at the end of a model's path
KEEP_ALIVE = 5.0  # seconds: proxies cut streams that stay silent for a minute or less
Shorten = Callable[[str, int], Awaitable[str]]  # a text, and how many of its tokens are kept
NO_ANSWER = {
    "length": "the team has no answer: a context was full before there was one",
    "format": "the team has no answer: a role did not keep to its format",
}


@dataclass(frozen=True, slots=True)
class Team:
    """What the routes know of the team. `name()`: the model id that clients see. `rewrites`: whether it takes several user turns."""

    name: Callable[[], str]
    episodes: Episodes
    shorten: Shorten
    sampling: Callable[[], Sampling]
    rewrites: bool


def add_chat_routes(app: FastAPI, team: Team) -> None:
    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest) -> Response:
        _check_model(body.model or team.name(), team.name())
        [task] = team.episodes.submit([_asked(body, team)])
        reply = _Reply(body, team)
        if body.stream:
            return stream(reply.events(task))
        try:
            return JSONResponse(await reply.completion(await task))
        finally:
            task.cancel()  # the caller may have gone

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """OpenAI's list and KServe's (v1) in one: both protocols have this path, and neither minds the other's keys."""
        return {"object": "list", "data": [_model(team.name())], "models": [team.name()]}

    @app.get("/v1/models/{model:path}")
    async def one_model(model: str) -> dict[str, Any]:
        """As OpenAI's clients read it, and KServe's."""
        if model.endswith(VERBS):
            raise HTTPException(405, f"there is no GET of {model[:200]!r}; this path takes POST")
        _check_model(model, team.name())
        return {**_model(model), "name": model, "ready": True}


def stream(events: AsyncIterator[str]) -> StreamingResponse:
    # Proxies that buffer would hold the events back until the end.
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _check_model(asked: str, name: str) -> None:
    if asked != name:
        raise NotFound(f"no model {asked[:200]!r}; this server has {name!r}", "model", "model_not_found")


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rolecast"}


def _asked(body: ChatRequest, team: Team) -> Asked:
    turns = body.users_turns
    if len(turns) > 1 and not team.rewrites:
        raise BadRequest(
            f"{len(turns)} messages are of role 'user', and this team reads one question: send that one alone, or serve the team with --rewriter",
            "messages",
        )
    usual = team.sampling()
    temperature = usual.temperature if body.temperature is None else body.temperature
    sampling = Sampling(temperature, usual.top_p if body.top_p is None else body.top_p)
    return Asked(body.question(), body.conversation() if len(turns) > 1 else (), sampling, body.seed)


@dataclass(frozen=True, slots=True)
class _Reply:
    body: ChatRequest
    team: Team

    async def completion(self, answer: Answer) -> dict[str, Any]:
        episode = answer.episode
        message, finish = await self._ending(episode)
        return {
            **_head(episode, "chat.completion", self.team.name()),
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "logprobs": None, "finish_reason": finish}],
            "usage": _usage(episode),
            "rolecast": {**self._told(answer), "trace": answer.trace},
        }

    async def events(self, task: asyncio.Task[Answer]) -> AsyncIterator[str]:
        """The answer comes last in an episode, so there is one content chunk; comments before it keep the connection open."""
        try:
            while not (await asyncio.wait({task}, timeout=KEEP_ALIVE))[0]:
                yield ": the team is at work\n\n"
            try:
                answer = task.result()
            except (Unavailable, Broken) as error:  # the status line has been sent: OpenAI's clients raise on an event of this shape
                yield event(openai(Fault(503 if isinstance(error, Unavailable) else 500, str(error))))
                return
            async for chunk in self._chunks(answer):
                yield event(chunk)
            yield "data: [DONE]\n\n"
        finally:
            task.cancel()  # the caller may have gone

    async def _chunks(self, answer: Answer) -> AsyncIterator[dict[str, Any]]:
        episode = answer.episode
        message, finish = await self._ending(episode)
        counted = self.body.stream_options is not None and self.body.stream_options.include_usage
        head = {**_head(episode, "chat.completion.chunk", self.team.name()), **({"usage": None} if counted else {})}
        delta = {"role": "assistant", **message}
        yield {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}
        yield {**head, "choices": [choice], "rolecast": self._told(answer)}
        if counted:
            yield {**head, "choices": [], "usage": _usage(episode)}

    async def _ending(self, episode: Trajectory) -> tuple[dict[str, Any], str]:
        """The message, and why it ends where it does. Without an answer it says so, in the key in which OpenAI's models refuse.

        "format" is none of OpenAI's reasons: an answer that is missing for another reason than its length is not to pass for one.
        """
        if not episode.answer:
            finish = "length" if episode.status == "length" else "format"
            return {"content": None, "refusal": NO_ANSWER[finish]}, finish
        ends = [place for stop in self.body.stops if (place := episode.answer.find(stop)) >= 0]
        text, finish = episode.answer[: min(ends, default=None)], "stop"
        if self.body.limit is not None:
            short = await self.team.shorten(text, self.body.limit)
            text, finish = short, "stop" if short == text else "length"
        return {"content": text, "refusal": None}, finish

    def _told(self, answer: Answer) -> dict[str, Any]:
        """`trace_url`: signed, so that a browser may open it. `unread`: the messages that the team did not see. Its roles have instructions of their own."""
        turns = self.body.users_turns
        unread = [place for place in range(len(self.body.messages)) if place not in turns] if len(turns) == 1 else []
        return {"status": answer.episode.status, "trace_url": answer.link, "unread": unread}


def _head(episode: Trajectory, kind: str, name: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{episode.id}", "object": kind, "created": int(time.time()), "model": name, "system_fingerprint": None}


def _usage(episode: Trajectory) -> dict[str, int]:
    read, sampled = token_counts(episode)
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


def event(body: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(body)}\n\n"
