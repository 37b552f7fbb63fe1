"""What a request started ends when its caller leaves."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

GONE = 499  # nobody reads it; it tells such requests apart in metrics and log


async def while_connected(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> bool:
    """Runs `app`; False if the caller left before the reply was complete: then `app` was cancelled.

    Only one at a time may wait for a message: the app until it has read the body, afterwards who watches here.
    """
    read, left, replied = asyncio.Event(), asyncio.Event(), False

    async def passed_on() -> Message:
        if read.is_set():
            await left.wait()
            return {"type": "http.disconnect"}
        message = await receive()
        if message["type"] == "http.disconnect":
            left.set()
        if not message.get("more_body"):
            read.set()
        return message

    async def watch() -> None:
        await read.wait()
        while not left.is_set():
            if (await receive())["type"] == "http.disconnect":
                left.set()

    async def noted(message: Message) -> None:
        nonlocal replied
        replied = replied or (message["type"] == "http.response.body" and not message.get("more_body"))
        await send(message)

    work, watcher = asyncio.ensure_future(app(scope, passed_on, noted)), asyncio.create_task(watch())
    try:
        await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if left.is_set() and not replied:
            work.cancel()
            await asyncio.wait({work})
            if work.cancelled() or isinstance(work.exception(), (ClientDisconnect, type(None))):
                return False
        await work
    finally:
        work.cancel()
        watcher.cancel()
    return True
