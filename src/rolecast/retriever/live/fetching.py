"""Fetches pages of the web, as nobody we trust has named them: from public addresses alone, and text alone, bounded in bytes and seconds.

There is no way through a proxy: a proxy resolves names by itself, and what is checked here would not be what is connected to.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urljoin

import httpcore

from rolecast.retries import Tries
from rolecast.retriever.live.addresses import PORTS, Refused, Resolve, Unread, checked, parsed, resolved
from rolecast.retriever.live.reading import decoded, takes, title_and_text
from rolecast.types import Passage

REDIRECTS: Final = 5
HEADERS: Final[list[tuple[bytes | str, bytes | str]]] = [
    ("User-Agent", "rolecast"), ("Accept", "text/html, application/xhtml+xml, text/plain, application/json;q=0.5"), ("Accept-Encoding", "gzip"),
]  # fmt: skip


class _Again(Exception):
    """What may pass. `wait`: seconds that the server asks for."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Fetcher:
    """`seconds` are for a page in all: redirects and tries that may pass (no connection, 429, 5xx) count. `most` bytes, as they come and as
    they are unpacked; `characters` of text. `resolve` and `network` are how names become addresses and addresses connections."""

    seconds: float = 15.0
    most: int = 2**20
    characters: int = 20_000
    resolve: Resolve = resolved
    network: httpcore.AsyncNetworkBackend = field(default_factory=httpcore.AnyIOBackend)
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    async def fetch(self, url: str) -> Passage:
        """The page as a passage whose id is `url`. `Refused` for what is not for us, `Unread` for what is not to be had."""
        try:
            async with asyncio.timeout(self.seconds):
                content_type, body = await self._tried(url)
                title, text = await asyncio.to_thread(_read, body, content_type)  # parsing a large page would hold everybody up
        except TimeoutError:
            raise Unread(f"it took longer than {self.seconds:g} s") from None
        return Passage(url, title, text[: self.characters])

    async def _tried(self, url: str) -> tuple[str, bytes]:
        tries = Tries(self.seconds, self.clock)
        while True:
            try:
                return await self._followed(url)
            except _Again as fault:
                pause = tries.pause(fault.wait)
                if pause is None:
                    raise Unread(f"{fault}, tried {tries.count} times") from None
            await self.sleep(pause)

    async def _followed(self, url: str) -> tuple[str, bytes]:
        """Every redirect is checked like the first address."""
        for _ in range(REDIRECTS + 1):
            found = await self._once(url)
            if not isinstance(found, str):
                return found
            url = urljoin(url, found)
        raise Refused(f"it redirects more than {REDIRECTS} times")

    async def _once(self, url: str) -> str | tuple[str, bytes]:
        """Where it redirects to, or type and body."""
        address = parsed(url)
        network = _Checked(self.network, self.resolve)
        context = _authorities() if address.scheme == "https" else None
        try:
            async with (
                httpcore.AsyncConnectionPool(ssl_context=context, network_backend=network, max_keepalive_connections=0) as pool,
                pool.stream("GET", address.geturl(), headers=HEADERS) as reply,
            ):
                return await self._taken(reply)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as fault:
            raise _Again(f"its server gives no answer ({type(fault).__name__})") from None
        except (httpcore.UnsupportedProtocol, UnicodeError, ValueError):
            raise Refused("the address is malformed") from None

    async def _taken(self, reply: httpcore.Response) -> str | tuple[str, bytes]:
        headers = _headers(reply.headers)
        if reply.status in (301, 302, 303, 307, 308) and "location" in headers:
            return headers["location"]
        if reply.status == 429 or reply.status >= 500:
            wait = headers.get("retry-after", "")
            raise _Again(f"its server answers {reply.status}", float(wait) if wait.isdecimal() else 0.0)
        if reply.status != 200:
            raise Unread(f"its server answers {reply.status}")
        kind = headers.get("content-type", "")
        if not takes(kind):
            raise Refused(f"it is {kind.partition(';')[0].strip()[:80] or 'of no type'}, no text")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.most:
            raise Refused(f"it is larger than {self.most} bytes")
        return kind, await self._body(reply, headers.get("content-encoding", "").strip().lower())

    async def _body(self, reply: httpcore.Response, encoding: str) -> bytes:
        """Unpacked as it comes, so that a bomb is dropped at the byte that is too many."""
        if encoding not in ("", "identity", "gzip", "x-gzip"):
            raise Refused(f"it is packed as {encoding[:40]}")
        unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS) if "gzip" in encoding else None
        body, taken = bytearray(), 0
        async for chunk in reply.aiter_stream():
            taken += len(chunk)
            try:
                body += chunk if unpacking is None else unpacking.decompress(chunk, self.most + 1 - len(body))
            except zlib.error:
                raise Refused("it cannot be unpacked") from None
            if max(taken, len(body)) > self.most:
                raise Refused(f"it is larger than {self.most} bytes")
        if unpacking is not None and not unpacking.eof:
            raise _Again("it ends in the middle")
        return bytes(body)


@functools.cache
def _authorities() -> ssl.SSLContext:
    return ssl.create_default_context()


def _read(body: bytes, content_type: str) -> tuple[str, str]:
    return title_and_text(decoded(body, content_type), content_type)


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


@dataclass(frozen=True, slots=True)
class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, and resolves no name a second time."""

    network: httpcore.AsyncNetworkBackend
    resolve: Resolve

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None, socket_options: Any = None
    ) -> httpcore.AsyncNetworkStream:
        if port not in PORTS.values():
            raise Refused(f"port {port} is not fetched from")
        fault: Exception = httpcore.ConnectError(f"{host} is not known")
        for address in await checked(host, port, self.resolve):
            try:
                return await self.network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                fault = error
        raise fault

    async def connect_unix_socket(self, path: str, timeout: float | None = None, socket_options: Any = None) -> httpcore.AsyncNetworkStream:
        raise Refused("no page lies in a socket")

    async def sleep(self, seconds: float) -> None:
        await self.network.sleep(seconds)
