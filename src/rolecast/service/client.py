"""JSON over HTTP to another part, patient enough that the part may be killed and started again in the middle of a step."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from rolecast import spans
from rolecast.errors import InputError, RolecastError
from rolecast.exits import BAD_INPUT, FAILED
from rolecast.retries import Tries
from rolecast.service.errors import said
from rolecast.service.lines import Lines
from rolecast.service.logs import REQUEST_ID
from rolecast.service.tokens import TOKEN, TOKEN_FILE

log = logging.getLogger(__name__)
CREDENTIALS = ("authorization", "x-api-key", "x-goog-api-key")  # headers that hold one


class NoAnswer(RolecastError):
    """A part is away, too slow, or fails (5xx, 429) for longer than one is willing to wait. `wrong`: it never answered at all, so that
    its address may be at fault."""

    def __init__(self, message: str, wrong: bool = False) -> None:
        super().__init__(message)
        self.exit_code = BAD_INPUT if wrong else FAILED


class WrongPart(RolecastError):
    """What answers at the address is another part, or does not take the credential."""

    exit_code = BAD_INPUT


class NoSuchRoute(WrongPart):
    """A part of another make or age: it does not know what is asked (404, 405)."""


class JsonClient:
    """`name` is the part ("retriever"); `patience` is how long, in seconds, an outage may last: a request is tried again until then.

    Requests must be idempotent. Waiting for a turn, when more than `concurrency` are asked for, costs no patience; a request that
    gets its turn when the part has been away for longer is tried once.
    `variable` is where the address comes from, by default ROLECAST_<NAME>_URL. `headers` are asked for before each request, and may
    hold a credential: they are never shown. `outside`: the part is not one of ours, so the way to it may lead through a proxy. `before`: is
    waited for before each try, and what it raises ends the request.
    """

    def __init__(
        self, name: str, url: str, *, timeout: float = 30.0, patience: float = 120.0, headers: Callable[[], Mapping[str, str]] = dict,
        variable: str = "", concurrency: int = 16, outside: bool = False, before: Callable[[], Awaitable[None]] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.variable = variable or f"ROLECAST_{name.upper()}_URL"
        if not url.startswith(("http://", "https://")):
            raise InputError(f"the {name}'s address {url!r} is no http(s) URL; mend {self.variable}")
        self.name, self.url = name, url.rstrip("/")
        self._timeout, self._patience, self._headers = timeout, patience, headers
        self._outside, self._before = outside, before
        self._sleep, self._clock = sleep, clock
        self._lines = Lines(concurrency, self._connect)
        self._down: float | None = None  # since when it has not answered
        self._answered = False

    async def post(self, path: str, body: object) -> Any:
        """The answer's JSON.

        `InputError` if the part refuses the request as malformed (400 of ours, 422), `NoAnswer` if it is away or fails, `WrongPart` for the rest.
        """
        return await self.request("POST", path, body)

    async def get(self, path: str) -> Any:
        """As `post`."""
        return await self.request("GET", path)

    async def request(self, method: str, path: str, body: object = None) -> Any:
        tries: Tries | None = None
        while True:
            reply, fault, begun = await self._try(method, path, body)
            if reply is not None and not fault:
                return self._read(method, path, reply)
            if self._down is None:  # once per outage, not once per request
                self._down = begun
                # What an outside part says of a fault may quote what it was asked; the error has it, if there is one.
                told = f"status {reply.status_code}" if self._outside and reply is not None else fault
                log.warning("%s at %s: %s; trying for %g s", self.name, self.url, told, self._patience)
            tries = tries or Tries(self._patience, self._clock, self._down)
            pause = tries.pause(asked_to_wait(reply))
            if pause is None:
                raise NoAnswer(
                    f"{self.name} at {self.url} did not answer {method} {path}: {fault}, tried {tries.count} times in {self._patience:g} s; "
                    f"see that it runs and that {self.variable} names it",
                    wrong=not self._answered,
                )
            await self._sleep(pause)

    async def _try(self, method: str, path: str, body: object) -> tuple[httpx.Response | None, str, float]:
        """The reply, why to try again, if there is a reason, and when it was this request's turn."""
        async with self._lines.turn() as client:
            begun = self._clock()
            if self._before is not None:
                await self._before()
            try:
                with spans.span(f"{method} {path.partition('?')[0]} of {self.name}", "client"):
                    headers = {**self._headers(), **({"x-request-id": REQUEST_ID.get()} if REQUEST_ID.get() else {}), **spans.headers()}
                    reply = await client.request(method, self.url + path, json=body, headers=headers)
            except httpx.TransportError as error:
                return None, f"{type(error).__name__} {error}".strip(), begun
        self._answered = True
        if reply.status_code >= 500 or reply.status_code == 429:
            return reply, f"status {reply.status_code} {detail_of(reply)}".strip(), begun
        self._down = None
        return reply, "", begun

    def _read(self, method: str, path: str, reply: httpx.Response) -> Any:
        if reply.status_code == 422 or (reply.status_code == 400 and not self._outside):
            raise InputError(detail_of(reply))
        if not reply.is_success:
            fault = NoSuchRoute if reply.status_code in (404, 405) else WrongPart
            advice = f"; set {TOKEN} or {TOKEN_FILE}" if reply.status_code == 401 and not self._outside else ""
            raise fault(f"{self.name} at {self.url} refused {method} {path}: {reply.status_code} {detail_of(reply)}{advice}")
        try:
            return reply.json()
        except ValueError:
            raise WrongPart(f"{self.url} answered {method} {path} without JSON; is it the {self.name}?") from None

    def _connect(self, certificates: ssl.SSLContext) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self._timeout, connect=5.0)
        # A transport of its own takes no proxy from the environment, but certificates: trust_env=False would leave both out.
        transport = None if self._outside else httpx.AsyncHTTPTransport(verify=certificates)
        return httpx.AsyncClient(timeout=timeout, transport=transport, verify=certificates)

    async def close(self) -> None:
        await self._lines.close()


def asked_to_wait(reply: httpx.Response | None) -> float:
    """Retry-After in seconds; its other form, a date, is left to the doubling."""
    value = reply.headers.get("retry-after", "") if reply is not None else ""
    return float(value) if value.isdecimal() else 0.0


def detail_of(reply: httpx.Response) -> str:
    """What the part says of a fault. Some quote the credential that they were shown."""
    try:
        detail = said(reply.json())
    except ValueError:
        detail = None
    text = " ".join((reply.text if detail is None else detail).split())
    for name in CREDENTIALS:
        if credential := reply.request.headers.get(name, "").rpartition(" ")[2]:
            text = text.replace(credential, "[credential]")
    return text[:500]
