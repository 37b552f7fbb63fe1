"""A retriever, and a front over two shards, under everything at once for half an hour: are answers right, and does memory stay?

    python benchmarks/soak.py [--minutes 30] [--passages 20000] [--clients 8] [--period 60]

BM25 over a counterfactual world, once as `blue` and once, under other ids, as `green`. Meanwhile: clients of every route, with one query and
with many; clients that leave in the middle of a request; bodies of 10 MB, which are to be refused; every `period` seconds another index in
the place of the retriever's; every one and a half the second shard is killed (SIGKILL) and started again. Every answer is compared with that
of the index in this process: it must be the whole answer of one index, of one that was served while the request was under way.

Ends with 1 where an answer was wrong, a request had neither answer nor error, the retriever refused what it should not, or resident memory of
a process that was not killed grew by 1 % in ten minutes (a line through the medians of the periods, without the first fifth of the time).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.retriever.shard import split
from rolecast.types import Passage
from rolecast.wire.retriever import contents

K, MB, WAIT = 5, 10**6, 60.0
GROWTH = 1.0  # percent in ten minutes that memory may grow
NAMES = ("blue", "green")
Found = list[list[Passage]]


@dataclass(slots=True)
class Process:
    name: str
    arguments: Sequence[str]
    port: int
    child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "rolecast.cli.main", "retriever", *self.arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        self.child = subprocess.Popen([*command, "--log-level", "error"], env={**os.environ, "OMP_NUM_THREADS": "1"})

    def memory(self) -> int:
        assert self.child is not None
        return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Tally:
    """What became of requests: `answers` by part and status, `wrong` ones, those `unanswered`, in words."""

    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    left: int = 0
    swaps: int = 0
    kills: int = 0
    rss: dict[str, dict[int, list[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))  # by process and period


class Soak:
    def __init__(self, folder: Path, passages: int, period: float, end: float) -> None:
        self.folder, self.period, self.begun, self.end = folder, period, time.monotonic(), end
        self.tally, self.served = Tally(), {"blue"}
        self.queries, self.passages, self.expected = prepare(folder, passages)
        ports = free_ports(4)
        places = [str(folder / "shards" / str(n)) for n in range(2)]
        self.alone = Process("retriever", ["serve", "--index", str(folder / "blue"), "--swaps-from", str(folder)], ports[0])
        self.shards = [Process(f"shard {n}", ["serve", "--index", place], ports[1 + n]) for n, place in enumerate(places)]
        addresses = ",".join(shard.url for shard in self.shards)
        self.front = Process("front", ["front", "--shards", addresses, "--patience", "5"], ports[3])

    @property
    def processes(self) -> list[Process]:
        return [self.alone, *self.shards, self.front]

    async def run(self, clients: int) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=WAIT, limits=limits, trust_env=False) as self.client:
            for process in self.processes:
                process.start()
            await asyncio.gather(*(self.ready(process) for process in self.processes))
            self.begun = time.monotonic()
            self.end += self.begun
            work: list[Awaitable[None]] = [self.ask(random.Random(number)) for number in range(clients)]
            work += [self.leave(random.Random(-1 - number)) for number in range(2)]
            await asyncio.gather(*work, self.burden(), self.swap(), self.kill(), self.watch())

    async def ready(self, process: Process) -> None:
        for _ in range(1200):
            with suppress(httpx.TransportError):
                if (await self.client.get(f"{process.url}/readyz")).status_code == 200:
                    return
            if process.child is not None and process.child.poll() is not None:
                break
            await asyncio.sleep(0.1)
        raise RuntimeError(f"{process.name} did not become ready within two minutes")

    def going(self) -> bool:
        return time.monotonic() < self.end

    async def every(self, seconds: float, do: Callable[[], Awaitable[None]]) -> None:
        at = self.begun + seconds
        while at < self.end:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            await do()
            at += seconds

    # What is asked

    async def ask(self, draw: random.Random) -> None:
        while self.going():
            process = draw.choice([self.alone, self.front])
            before = set(self.served)
            path, body, right = self.request(draw)
            try:
                reply = await self.client.post(process.url + path, json=body)
            except httpx.HTTPError as error:
                self.tally.unanswered.append(f"{process.name} {path}: {type(error).__name__} {error}")
                continue
            self.tally.answers[f"{process.name} {reply.status_code}"] += 1
            if reply.status_code == 200:
                of = before | self.served if process is self.alone else {"blue"}
                if not any(right(reply.json(), name) for name in of):
                    self.tally.wrong.append(f"{process.name} {path} {str(body)[:100]}: {reply.text[:200]}")
            elif process is self.alone and not (path == "/fetch" and reply.status_code == 400):  # ids of the other index
                self.tally.refused.append(f"{process.name} {path}: {reply.status_code} {reply.text[:200]}")

    def request(self, draw: random.Random) -> tuple[str, Any, Callable[[Any, str], bool]]:
        """Path and body, and whether a reply is the one that index NAME gives."""
        kind = draw.random()
        if kind < 0.1:
            rows = [draw.randrange(len(self.passages["blue"])) for _ in range(draw.randint(1, 20))]
            ids = [self.passages["blue"][row].id for row in rows]
            return "/fetch", {"ids": ids}, lambda reply, name: [one["id"] for one in reply["result"]] == ids
        rows = [draw.randrange(len(self.queries)) for _ in range(draw.choice([1, 1, 1, 8, 64]))]
        texts = [self.queries[row] for row in rows]
        if kind < 0.3:
            return "/search", {"questions": texts, "N": K}, lambda reply, name: [one["top_k_docs"] for one in reply] == [
                [contents(p.title, p.text) for p in self.expected[name][row]] for row in rows
            ]  # fmt: skip
        body = {"queries": texts, "topk": K, "return_scores": True}
        return "/retrieve", body, lambda reply, name: [[(hit["document"]["id"], hit["score"]) for hit in of] for of in reply["result"]] == [
            [(p.id, p.score) for p in self.expected[name][row]] for row in rows
        ]  # fmt: skip

    async def leave(self, draw: random.Random) -> None:
        """Sends a request, or half of one, and is gone."""
        while self.going():
            process = draw.choice([self.alone, self.front])
            request = self.client.build_request("POST", process.url + "/retrieve", json={"queries": self.queries[:64], "topk": K})
            head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            whole = f"POST /retrieve HTTP/1.1\r\n{head}\r\n".encode() + request.content
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", process.port)
                writer.write(whole[: draw.choice([len(whole), len(whole) // 2])])
                await writer.drain()
                await asyncio.sleep(draw.random() * 0.05)
                writer.close()
            self.tally.left += 1
            await asyncio.sleep(0.2)

    async def burden(self) -> None:
        body = b'{"queries": ["' + b"x" * (10 * MB) + b'"]}'
        while self.going():
            for process in (self.alone, self.front):
                try:
                    reply = await self.client.post(process.url + "/retrieve", content=body, headers={"content-type": "application/json"})
                    self.tally.answers[f"{process.name}, 10 MB {reply.status_code}"] += 1
                    if reply.status_code != 413:
                        self.tally.wrong.append(f"{process.name} took 10 MB: {reply.status_code} {reply.text[:200]}")
                except httpx.WriteError:  # refused while it was being sent
                    self.tally.answers[f"{process.name}, 10 MB cut off"] += 1
                except httpx.HTTPError as error:
                    self.tally.unanswered.append(f"{process.name}, 10 MB: {type(error).__name__} {error}")
            await asyncio.sleep(1.0)

    # What befalls the services

    async def swap(self) -> None:
        async def other() -> None:
            [now] = self.served
            new = next(name for name in NAMES if name != now)
            self.served = {now, new}
            reply = await self.client.post(f"{self.alone.url}/v1/index", json={"index": str(self.folder / new)})
            if reply.status_code != 200:
                self.tally.refused.append(f"swap to {new}: {reply.status_code} {reply.text[:200]}")
            self.served = {new} if reply.status_code == 200 else {now}
            self.tally.swaps += 1

        await self.every(self.period, other)

    async def kill(self) -> None:
        async def one() -> None:
            child = self.shards[1].child
            assert child is not None
            child.send_signal(signal.SIGKILL)
            child.wait()
            self.tally.kills += 1
            await asyncio.sleep(2.0)
            self.shards[1].start()
            await self.ready(self.shards[1])

        await self.every(1.5 * self.period, one)

    async def watch(self) -> None:
        while self.going():
            period = int((time.monotonic() - self.begun) / self.period)
            for process in (self.alone, self.shards[0], self.front):
                self.tally.rss[process.name][period].append(process.memory())
            await asyncio.sleep(1.0)


def prepare(folder: Path, passages: int) -> tuple[list[str], dict[str, list[Passage]], dict[str, Found]]:
    from retriever import world_of

    world = world_of(passages)
    queries = sorted({hop.query for question in world.questions["test"] for hop in question.gold.chain})
    texts = {"blue": list(world.passages), "green": [replace(passage, id=f"green-{passage.id}") for passage in world.passages]}
    found = {}
    for name in NAMES:
        build_index(texts[name], folder / name, "bm25")
        found[name] = asyncio.run(LocalRetriever.open(folder / name).search(queries, K))
    split(folder / "blue", 2, lambda number: nullcontext(folder / "shards" / str(number)))
    return queries, texts, found


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def growth(by_period: dict[int, list[int]], period: float) -> float:
    """Percent of the mean in ten minutes; nan where there are too few periods."""
    kept = sorted(by_period)[len(by_period) // 5 or 1 :]
    if len(kept) < 3:
        return float("nan")
    medians = [float(np.median(by_period[at])) for at in kept]
    slope = float(np.polyfit([at * period / 600 for at in kept], medians, 1)[0])
    return 100 * slope / float(np.mean(medians))


def report(soak: Soak) -> bool:
    tally = soak.tally
    print(f"{tally.swaps} swaps, {tally.kills} kills, {tally.left} clients that left")
    for name, count in sorted(tally.answers.items()):
        print(f"{name:<40}{count:>10}")
    grown = {name: growth(by_period, soak.period) for name, by_period in tally.rss.items()}
    for name, by_period in tally.rss.items():
        medians = [round(float(np.median(by_period[at])) / MB) for at in sorted(by_period)]
        print(f"{name:<12} RSS {grown[name]:+.2f} % in ten minutes; MB by period: {' '.join(map(str, medians))}")
    for what in ("wrong", "unanswered", "refused"):
        cases = getattr(tally, what)
        print(f"{what}: {len(cases)}" + "".join(f"\n  {case}" for case in cases[:5]))
    return not (tally.wrong or tally.unanswered or tally.refused or any(not rise < GROWTH for rise in grown.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--period", type=float, default=60.0, help="seconds between two swaps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), options.passages, options.period, 60 * options.minutes)
        try:
            asyncio.run(soak.run(options.clients))
        finally:
            for process in soak.processes:
                if process.child is not None:
                    process.child.terminate()
                    process.child.wait()
        right = report(soak)
    print("right" if right else "not right")
    sys.exit(not right)


if __name__ == "__main__":
    main()
