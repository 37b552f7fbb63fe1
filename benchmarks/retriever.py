"""Queries per second of the retriever over HTTP, one query a request, against the same index in this process and behind a plain FastAPI app.

    python benchmarks/retriever.py [--kind bm25|dense] [--passages 20000] [--clients 1,16,64,256] [--seconds 5] [--profile FILE]

bm25: a counterfactual world of about that many passages and its gold sub-queries. dense: random unit vectors of 384 numbers and an encoder
that looks queries up in a table, so that FAISS and HTTP are what is measured; raw FAISS, one query at a time and in batches of 64, stands
beside it. k = 5. A service is a process of its own and its clients are this one: on a machine of two cores they share them.

one at a time  the app that one writes first (`plain`): it searches for each request by itself, and answers in the same form
over HTTP      the retriever. A client holds one connection and asks again when it is answered
by the clock   the retriever at 70 % of what 64 such clients reached: requests begin at random times (Poisson), whether others were answered or
               not, on as many connections as that takes, and last from when they were to begin

Server CPU is the service's own, of all its threads, for a request. `beyond`: that less the CPU time of a search in this process, alone for one
client and one at a time, else in batches of 64. A negative one says that a service batches better than that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import uvicorn
from fastapi import FastAPI

from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.types import Passage
from rolecast.wire.retriever import RetrieveRequest, retrieve_reply
from rolecast.world.counterfactual import World, build_world

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
K, WIDTH, ASKED = 5, 384, 2000
BUSY = 64  # clients, and queries of a batch, that the ratios are of
LOAD = 0.7  # of what that many clients reached
TABLE = "ROLECAST_BENCHMARK_TABLE"  # marks the service's process, whose encoder is the table too
HEAD = f"{'':<28}{'clients':>8}{'queries/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms':>9}{'beyond':>9}"


@dataclass(frozen=True, slots=True)
class Found:
    """Queries a second, median and 99th percentile of a request in milliseconds, and CPU milliseconds a query of whoever answers."""

    rate: float
    median: float
    p99: float
    cpu: float = math.nan


class Table:
    """Vectors by the number that a text ends with, as an encoder."""

    name, window = "table", 10**6

    def __init__(self, name: str = "table", prefixes: object = None) -> None:
        from rolecast.retriever.encoder import Prefixes

        self.prefixes = Prefixes()
        generator = np.random.Generator(np.random.PCG64(0))
        vectors = generator.standard_normal((2**16, WIDTH), dtype=np.float32)
        self._vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self._passages = np.random.Generator(np.random.PCG64(1))  # goes on from batch to batch: passages that are alike would be ties

    def identity(self) -> Any:
        from rolecast.retriever.encoder import Identity

        return Identity("table", "", "", self.window)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [3] * len(texts)

    def encode(self, texts: Sequence[str], side: str) -> npt.NDArray[np.float32]:
        if side == "passage":  # more than the table has: drawn
            vectors = self._passages.standard_normal((len(texts), WIDTH), dtype=np.float32)
            return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return self._vectors[[int(text.rpartition(" ")[2]) if text[-1:].isdecimal() else 0 for text in texts]]


def world_of(passages: int) -> World:
    """About as many: an entity has a handful of facts, each with a passage."""
    probe = build_world(0, {"train": 400, "dev": 300, "test": 300}, {"train": 100, "dev": 60, "test": 300})
    scale = passages / len(probe.passages)
    entities = {"train": round(1000 * scale) - 600, "dev": 300, "test": 300}
    return build_world(0, entities, {"train": 100, "dev": 60, "test": 600})


def local_rate(retriever: LocalRetriever, queries: Sequence[str], seconds: float, batch: int) -> Found:
    async def ask() -> list[float]:
        source, times = cycle(queries), list[float]()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            asked, begun = [next(source) for _ in range(batch)], time.perf_counter()
            await retriever.search(asked, K)
            times.append(time.perf_counter() - begun)
        return times

    before = time.process_time()
    times = asyncio.run(ask())
    return _figures(times, seconds, time.process_time() - before, batch)


def _figures(times: Sequence[float], seconds: float, cpu: float = math.nan, batch: int = 1) -> Found:
    answered = len(times) * batch
    return Found(answered / seconds, 1000 * statistics.median(times), 1000 * float(np.percentile(times, 99)), 1000 * cpu / answered)


def requests_of(queries: Sequence[str]) -> Iterator[bytes]:
    """Without end; they are made before a clock starts."""
    bodies = [json.dumps({"queries": [query], "topk": K, "return_scores": True}).encode() for query in queries]
    head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    return cycle([head % (len(body), body) for body in bodies])


async def ask(connection: Connection, request: bytes) -> None:
    """By a client that costs little."""
    reader, writer = connection
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode())
    await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]))


async def closed_loop(port: int, requests: Iterator[bytes], clients: int, seconds: float) -> list[float]:
    """Seconds of each request."""
    times, end = list[float](), time.perf_counter() + seconds

    async def client() -> None:
        connection = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            begun = time.perf_counter()
            await ask(connection, next(requests))
            times.append(time.perf_counter() - begun)
        connection[1].close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return times


async def by_the_clock(port: int, requests: Iterator[bytes], rate: float, seconds: float) -> list[float]:
    """Seconds of each request from when it was to begin."""
    moments = np.cumsum(np.random.Generator(np.random.PCG64(0)).exponential(1 / rate, round(rate * seconds))).tolist()
    free, times, begun = list[Connection](), list[float](), time.perf_counter()

    async def one(moment: float) -> None:
        connection = free.pop() if free else await asyncio.open_connection("127.0.0.1", port)
        await ask(connection, next(requests))
        times.append(time.perf_counter() - begun - moment)
        free.append(connection)

    async with asyncio.TaskGroup() as group:
        for moment in moments:
            if (early := begun + moment - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            group.create_task(one(moment))
    for _, writer in free:
        writer.close()
    return times


@contextmanager
def service(*arguments: str, port: int, profile: str = "") -> Iterator[int]:
    """This file as a service, which answers; its process."""
    program = [sys.executable, *(["-m", "cProfile", "-o", profile] if profile else []), __file__, *arguments]
    child = subprocess.Popen(program, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 120
        while not _ready(port):
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the service did not become ready within two minutes")
            time.sleep(0.1)
        yield child.pid
    finally:
        child.terminate()
        child.wait()


def _ready(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def plain(index: Path, port: int) -> None:
    """What one writes first."""
    app, retriever = FastAPI(), LocalRetriever.open(index)

    @app.get("/readyz")
    async def ready() -> str:
        return "ok"

    @app.post("/retrieve")
    async def retrieve(asked: RetrieveRequest) -> dict[str, Any]:
        return retrieve_reply(await retriever.search(asked.queries, asked.topk or K), asked.return_scores)

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raw_faiss(retriever: LocalRetriever, queries: Sequence[str], seconds: float) -> dict[int, Found]:
    """By queries of a batch."""
    dense = retriever._dense
    assert dense is not None
    vectors, found = dense.encoder.encode(queries, "query"), {}
    for batch in (1, BUSY):
        times, at, end, before = list[float](), 0, time.perf_counter() + seconds, time.process_time()
        while time.perf_counter() < end:
            begun = time.perf_counter()
            dense._index.search(vectors[at : at + batch], K)
            times.append(time.perf_counter() - begun)
            at = (at + batch) % (len(vectors) - batch)
        found[batch] = _figures(times, seconds, time.process_time() - before, batch)
        show(f"raw FAISS, batches of {batch}", 1, found[batch])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["bm25", "dense"], default="bm25")
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--clients", default="1,16,64,256")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--profile", default="", help="where cProfile writes what the service did")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.kind == "dense":
        os.environ[TABLE] = "1"
        _use_table()
    with tempfile.TemporaryDirectory() as folder:
        index, queries = make(options.kind, options.passages, Path(folder))
        measure(options, index, queries, sorted({BUSY, *map(int, options.clients.split(","))}))


def measure(options: argparse.Namespace, index: Path, queries: Sequence[str], counts: Sequence[int]) -> None:
    retriever, seconds = LocalRetriever.open(index), options.seconds
    print(f"{options.kind}, {len(retriever.passages)} passages, {len(queries)} queries, k = {K}, {os.cpu_count()} cores\n{HEAD}")
    faiss = raw_faiss(retriever, queries, seconds) if options.kind == "dense" else {}
    local = {batch: local_rate(retriever, queries, seconds, batch) for batch in (1, BUSY)}
    for batch, found in local.items():
        show(f"in process, batches of {batch}", 1, found)
    port, requests = free_port(), requests_of(queries)
    with service("--plain", str(index), str(port), port=port) as pid:
        single = {clients: served(pid, closed_loop(port, requests, clients, seconds)) for clients in counts}
    for clients, found in single.items():
        show("one at a time", clients, found, local[1].cpu)
    serve = ["retriever", "serve", "--index", str(index), "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    with service("--serve", *serve, port=port, profile=options.profile) as pid:
        ours = {clients: served(pid, closed_loop(port, requests, clients, seconds)) for clients in counts}
        clocked = served(pid, by_the_clock(port, requests, LOAD * ours[BUSY].rate, seconds))
    for clients, found in ours.items():
        show("over HTTP", clients, found, local[1 if clients == 1 else BUSY].cpu)
    show("by the clock", "", clocked, local[BUSY].cpu)
    raws = {"in process": local} | ({"raw FAISS": faiss} if faiss else {})
    ratios = [f"{name}, batches of {batch}: {ours[BUSY].rate / found[batch].rate:.2f}" for name, found in raws.items() for batch in found]
    print(f"{BUSY} clients over HTTP / {'; / '.join(ratios)}; / one at a time: {ours[BUSY].rate / single[BUSY].rate:.2f}")


def served(pid: int, asking: Coroutine[Any, Any, list[float]]) -> Found:
    before, begun = cpu_seconds(pid), time.perf_counter()
    times = asyncio.run(asking)
    return _figures(times, time.perf_counter() - begun, cpu_seconds(pid) - before)


def make(kind: str, passages: int, folder: Path) -> tuple[Path, list[str]]:
    if kind == "bm25":
        world = world_of(passages)
        build_index(world.passages, folder / "index", "bm25")
        return folder / "index", [hop.query for question in world.questions["test"] for hop in question.gold.chain]
    texts = [Passage(str(n), f"Title {n}", f"text of passage {n} " + "word " * 60) for n in range(passages)]
    build_index(texts, folder / "index", "dense", "table")
    return folder / "index", [f"query {n}" for n in range(ASKED)]


def _use_table() -> None:
    from rolecast.retriever import encoder

    encoder.Encoder = Table  # type: ignore[assignment, misc]


def show(name: str, clients: int | str, found: Found, search: float = math.nan) -> None:
    """`search`: CPU milliseconds of a search without a service."""
    cells = [f"{number:>9.2f}" for number in (found.median, found.p99, found.cpu, found.cpu - search) if not math.isnan(number)]
    print(f"{name:<28}{clients:>8}{found.rate:>11.0f}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    if os.environ.get(TABLE):  # a service's encoder too
        _use_table()
    if sys.argv[1:2] == ["--plain"]:
        plain(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["--serve"]:
        from rolecast.cli.main import main as rolecast

        del sys.argv[1]
        rolecast()
    else:
        main()
