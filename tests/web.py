"""A small web on this machine: names, the addresses that they resolve to, and a server behind each address that answers in raw bytes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import httpcore

from rolecast.retriever.live.fetching import Fetcher
from rolecast.types import Passage

PUBLIC = "93.184.216.34"
Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def page(body: bytes | str, kind: str = "text/html; charset=utf-8", status: str = "200 OK", **headers: str) -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in {"content_length": str(len(raw)), **headers}.items())
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{more}connection: close\r\n\r\n".encode() + raw


def redirect(to: str, status: str = "302 Found") -> bytes:
    return page("", status=status, location=to)


class Web(httpcore.AsyncNetworkBackend):
    """`names`: what a name resolves to, the next time and the times after that (the last for ever). `answers`: by path, in order, the last for
    ever. `dialled`: what was connected to. Every address leads to the one server of this web, so that an attack would get its answer."""

    def __init__(self, **answers: Answer | list[Answer]) -> None:
        self.names: dict[str, list[list[str]]] = {"site.test": [[PUBLIC]]}
        self.answers: dict[str, list[Answer]] = {f"/{path}": list(a) if isinstance(a, list) else [a] for path, a in answers.items()}
        self.dialled: list[str] = []
        self.asked: list[str] = []
        self.resolved: dict[str, int] = defaultdict(int)
        self.slept: list[float] = []
        self._network = httpcore.AnyIOBackend()

    async def resolve(self, host: str, port: int) -> list[str]:
        if host not in self.names:  # numbers are what they say, as getaddrinfo has it
            return [host]
        self.resolved[host] += 1
        return self.names[host].pop(0) if len(self.names[host]) > 1 else self.names[host][0]

    async def connect_tcp(self, host: str, port: int, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        self.dialled.append(host)
        return await self._network.connect_tcp("127.0.0.1", self.port, *args, **kwargs)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def fetcher(self, **settings: Any) -> Fetcher:
        return Fetcher(resolve=self.resolve, network=self, sleep=self.sleep, **{"seconds": 5.0, **settings})

    def fetch(self, url: str = "http://site.test/a", **settings: Any) -> Passage:
        async def fetched() -> Passage:
            async with self:
                return await self.fetcher(**settings).fetch(url)

        return asyncio.run(fetched())

    async def __aenter__(self) -> Web:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.asked.append(head)
            left = self.answers.get(head.split(" ")[1].partition("?")[0]) or [page("nothing", status="404 Not Found")]
            answer = left.pop(0) if len(left) > 1 else left[0]
            if callable(answer):
                await answer(writer)
            else:
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
