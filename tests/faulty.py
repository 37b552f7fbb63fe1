"""A judge model's endpoint that answers rightly, slowly, or not at all: a bare server in a thread of its own, so that it is no bottleneck."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

HANG = 60.0  # seconds
FAULTS = {"429": 0.05, "500": 0.02, "garbage": 0.01, "hang": 0.01, "trickle": 0.01}  # shares of requests
GARBAGE: tuple[Callable[[str, str], bytes], ...] = (
    lambda mark, word: b"<html>busy</html>",
    lambda mark, word: b'{"choices": [',
    lambda mark, word: b'{"choices": []}',
    lambda mark, word: b"null",
    lambda mark, word: _said("I cannot tell."),
    lambda mark, word: _said(f"Score: {_other(word)}"),  # without the mark
    lambda mark, word: _said(f"Score {mark}: 7"),
    lambda mark, word: _said(f"Score {mark}: {word}\nScore {mark}: {_other(word)}"),
    lambda mark, word: _said(f"Score {mark}: {_other(word)}", "content_filter"),
    lambda mark, word: _said(f"Score {mark}: {_other(word)}", "length"),
)


@dataclass
class Faulty:
    """`right`: whether a prompt is of a right answer. Faults are drawn from `seed`."""

    right: Callable[[str], bool]
    seed: int = 0
    latency: float = 0.02  # seconds
    faults: Mapping[str, float] = field(default_factory=lambda: FAULTS)
    given: Counter[str] = field(default_factory=Counter)
    arrived: list[float] = field(default_factory=list)  # when each request came, by a monotonic clock

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                self.arrived.append(time.monotonic())
                await self._answer(writer, json.loads(body)["messages"][0]["content"])
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the stub ends
        finally:
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, prompt: str) -> None:
        fault = self._rng.choices([*self.faults, "none"], [*self.faults.values(), 1 - sum(self.faults.values())])[0]
        self.given[fault] += 1
        mark, word = prompt.rpartition("Score ")[2][:8], "YES" if self.right(prompt) else "NO"
        await asyncio.sleep(self.latency)
        if fault == "hang":
            await asyncio.sleep(HANG)
        elif fault in ("429", "500"):
            await _send(writer, b'{"error": {"message": "busy"}}', int(fault))
        elif fault == "garbage":
            await _send(writer, GARBAGE[(self.given["garbage"] - 1) % len(GARBAGE)](mark, word))
        elif fault == "trickle":
            whole = _said(f"It trickles.\nScore {mark}: {word}")
            writer.write(_head(len(whole)))
            for at in range(len(whole)):
                writer.write(whole[at : at + 1])
                await writer.drain()
                await asyncio.sleep(HANG / len(whole))
        else:
            await _send(writer, _said(f"It is as it is.\nScore {mark}: {word}"))


def _other(word: str) -> str:
    return "NO" if word == "YES" else "YES"


def _said(text: str, finish: str = "stop") -> bytes:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": {"total_tokens": 300}}).encode()


def _head(length: int, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode()


async def _send(writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> None:
    writer.write(_head(len(body), status) + body)
    await writer.drain()


@contextmanager
def faulty(stub: Faulty) -> Iterator[str]:
    """The stub's address, up to and with /v1."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(stub.serve, "127.0.0.1", 0), loop).result(10)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:

        async def end() -> None:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
