"""Requests to an OpenAI-compatible endpoint that judges: at most so many at once and a second, each with a limit that nothing stretches.

All that counts against a request's limits is its own time: from sending, with the pauses between its tries, never in a queue of ours.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ssl import SSLContext
from typing import Any, Final

import httpx

from rolecast import spans
from rolecast.errors import InputError, RolecastError
from rolecast.judge.pace import Pace
from rolecast.retries import Tries
from rolecast.service.client import asked_to_wait, detail_of
from rolecast.service.errors import Overloaded
from rolecast.service.lines import Lines
from rolecast.service.logs import REQUEST_ID

PATH: Final = "/chat/completions"
VARIABLE: Final = "ROLECAST_JUDGE_OPENAI_URL"
LONGEST: Final = 2**20  # bytes of a reply: a verdict is short, and what streams on for ever is none
CONNECT: Final = 5.0  # seconds
PASSING: Final = frozenset({408, 425, 429})  # statuses, beside 5xx, of faults that pass


class NoReply(RolecastError):
    """The endpoint gave nothing that could be a verdict. `status`: what it answered, 0 if it did not."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Endpoint:
    """`timeout`: seconds of a try, until its last byte. `patience`: seconds of a request with all its tries.

    `concurrency`: requests under way; the others wait for a turn as long as it takes, or for `queue` seconds, after which `Overloaded` is
    raised: who asked over HTTP waits with a limit too, and asks again.
    """

    def __init__(
        self, url: str, api_key: str = "", *, timeout: float = 5.0, patience: float = 15.0, concurrency: int = 32,
        pace: Pace | None = None, queue: float | None = None,
    ) -> None:  # fmt: skip
        if not url.startswith(("http://", "https://")):
            raise InputError(f"the judge model's address {url!r} is no http(s) URL; mend {VARIABLE}")
        self.url = url.rstrip("/")
        self.sent = 0  # tries
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._api_key, self._timeout, self._patience, self._queue = api_key, timeout, patience, queue
        self._pace = pace or Pace()
        self._lines = Lines(concurrency, _connected)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[httpx.AsyncClient]:
        """One of the requests that are under way, once there is room for it, and what it is sent with. What it needs is made in here: ten
        thousand prompts made at once would hold up those that are sent. `Overloaded`."""
        async with AsyncExitStack() as held:
            try:
                line = await held.enter_async_context(self._lines.turn(self._queue))
            except TimeoutError:
                raise Overloaded(f"no turn at the judge model within {self._queue:g} s: too many verdicts are asked for") from None
            yield line

    async def ask(self, line: httpx.AsyncClient, body: dict[str, Any], guessed: int) -> Any:
        """The reply's JSON. `line`: of a `turn`. `guessed`: about how many tokens it will take. Raises `NoReply`."""
        await self._pace.turn(guessed)
        begun, queued = time.monotonic(), 0.0

        def under_way() -> float:
            return time.monotonic() - begun - queued

        tries = Tries(self._patience, under_way, 0.0)
        while True:
            reply, fault = await self._sent(line, body, min(self._timeout, self._patience - under_way()))
            if reply is not None and not fault:
                return self._read(reply)
            pause = tries.pause(asked_to_wait(reply))
            if pause is not None:
                await asyncio.sleep(pause)
                queued += await self._pace.turn(guessed)
            if pause is None or under_way() >= self._patience:
                status = reply.status_code if reply is not None else 0
                raise NoReply(
                    f"judge model at {self.url} did not answer: {self.unkeyed(fault)}, tried {tries.count} times in {under_way():.1f} s; "
                    f"see that it runs and that {VARIABLE} names it",
                    status,
                )

    async def _sent(self, client: httpx.AsyncClient, body: dict[str, Any], seconds: float) -> tuple[httpx.Response | None, str]:
        """The reply, and why to try again, if there is a reason."""
        headers = {**self._headers, **({"x-request-id": REQUEST_ID.get()} if REQUEST_ID.get() else {})}
        self.sent += 1
        try:
            # The client's own timeouts are for a read: an endpoint that sends a byte now and then meets none of them.
            async with asyncio.timeout(seconds):
                with spans.span(f"POST {PATH} of judge model", "client"):
                    async with client.stream("POST", self.url + PATH, json=body, headers={**headers, **spans.headers()}) as streamed:
                        reply = await _whole(streamed)
        except TimeoutError:
            return None, f"no whole reply within {seconds:.3g} s"
        except httpx.TransportError as error:
            return None, f"{type(error).__name__} {error}".strip()
        if reply.status_code >= 500 or reply.status_code in PASSING:
            return reply, f"status {reply.status_code} {detail_of(reply)}".strip()
        return reply, ""

    def _read(self, reply: httpx.Response) -> Any:
        if not reply.is_success:
            said = self.unkeyed(detail_of(reply))
            raise NoReply(f"judge model at {self.url} refused the request: {reply.status_code} {said}", reply.status_code)
        try:
            return json.loads(reply.content)
        except ValueError:
            raise NoReply(f"judge model at {self.url} answered without JSON; is it an OpenAI-compatible endpoint?") from None

    def took(self, guessed: int, tokens: int) -> None:
        """Tells the pace what a request took, as the endpoint says; 0 is not told."""
        if tokens:
            self._pace.correct(guessed, tokens)

    def unkeyed(self, text: str) -> str:
        """Some endpoints quote the key that they refuse."""
        return text.replace(self._api_key, "[OPENAI_API_KEY]") if self._api_key else text

    async def close(self) -> None:
        await self._lines.close()


def _connected(certificates: SSLContext) -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=httpx.Timeout(None, connect=CONNECT), verify=certificates)


async def _whole(streamed: httpx.Response) -> httpx.Response:
    """As `aread`, which has no limit."""
    parts, size = [], 0
    async for part in streamed.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > LONGEST:
            raise httpx.ReadError(f"a reply of more than {LONGEST} bytes")
    kept = {name: streamed.headers[name] for name in ("content-type", "retry-after") if name in streamed.headers}
    return httpx.Response(streamed.status_code, headers=kept, content=b"".join(parts), request=streamed.request)
