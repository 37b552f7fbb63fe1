"""An episode as it happens: `POST /ask`, which the page reads as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from rolecast.agent import chat
from rolecast.agent.core import Asked
from rolecast.agent.episodes import Answer, Broken, Episodes, Unavailable
from rolecast.agent.watch import Event, Watch


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid")

    question: str


def add_live_route(app: FastAPI, episodes: Episodes) -> None:
    @app.post("/ask")
    async def ask(body: Question) -> StreamingResponse:
        """What `Watch` tells, one event each; before it {"event": "waiting", "before"} if others come first; the last one is

        {"event": "done", "trace", "trace_url"} or {"event": "error", "status", "detail"}.
        """
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event | None]()

        def tell(event: Event) -> None:  # in the team's thread
            loop.call_soon_threadsafe(events.put_nowait, event)

        [task] = episodes.submit([Asked(body.question, watch=Watch(tell))])
        task.add_done_callback(lambda _: events.put_nowait(None))
        return chat.stream(_told(task, events, episodes.waiting))


async def _told(task: asyncio.Task[Answer], events: asyncio.Queue[Event | None], before: int) -> AsyncIterator[str]:
    try:
        if before:
            yield chat.event({"event": "waiting", "before": before})
        while True:
            try:
                event = await asyncio.wait_for(events.get(), chat.KEEP_ALIVE)
            except TimeoutError:
                yield ": the team is at work\n\n"
                continue
            if event is None:
                break
            yield chat.event(event)
        yield chat.event(_last(task))
    finally:
        task.cancel()  # the caller may have gone


def _last(task: asyncio.Task[Answer]) -> Event:
    try:
        answer = task.result()
    except (Unavailable, Broken) as error:
        return {"event": "error", "status": 503 if isinstance(error, Unavailable) else 500, "detail": str(error)}
    return {"event": "done", "trace": answer.trace, "trace_url": answer.link}
