"""Queries per second of the retriever over HTTP, one query a request, against the same index in this process.

    python benchmarks/retriever.py [--kind bm25|dense] [--passages 20000] [--clients 1,16,64,256] [--seconds 5] [--profile FILE]

bm25: a counterfactual world of about that many passages and its gold sub-queries. dense: random unit vectors of 384 numbers and an encoder
that looks queries up in a table, so that FAISS and HTTP are what is measured; raw FAISS, one query at a time and in batches of 64, stands
beside it. k = 5. The service is a process of its own and its clients are this one: on a machine of two cores they share them.
A client holds one connection and asks again when it is answered. Server CPU is the service's own, of all its threads.
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
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.types import Passage
from rolecast.world.counterfactual import World, build_world

K, WIDTH, ASKED = 5, 384, 2000
TABLE = "ROLECAST_BENCHMARK_TABLE"  # marks the service's process, whose encoder is the table too
HEAD = f"{'':<28}{'clients':>8}{'queries/s':>11}{'p50 ms':>9}{'p99 ms':>9}{'server CPU ms':>15}"


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


def local_rate(retriever: LocalRetriever, queries: Sequence[str], seconds: float, batch: int) -> tuple[float, float, float]:
    """Queries per second, and median and 99th percentile of a search in milliseconds."""

    async def ask() -> list[float]:
        source, times = cycle(queries), list[float]()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            asked, begun = [next(source) for _ in range(batch)], time.perf_counter()
            await retriever.search(asked, K)
            times.append(time.perf_counter() - begun)
        return times

    return _figures(asyncio.run(ask()), seconds, batch)


def _figures(times: Sequence[float], seconds: float, batch: int = 1) -> tuple[float, float, float]:
    return len(times) * batch / seconds, 1000 * statistics.median(times), 1000 * float(np.percentile(times, 99))


async def _client(port: int, requests: Any, end: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < end:
        begun = time.perf_counter()
        writer.write(next(requests))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
        times.append(time.perf_counter() - begun)
    writer.close()


def http_rate(port: int, queries: Sequence[str], clients: int, seconds: float) -> tuple[float, float, float]:
    """By a client that costs little: sockets, and requests that are made before the clock starts."""
    bodies = [json.dumps({"queries": [query], "topk": K, "return_scores": True}).encode() for query in queries]
    head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    requests, times = cycle([head % (len(body), body) for body in bodies]), list[float]()

    async def all_of() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(_client(port, requests, end, times) for _ in range(clients)))

    asyncio.run(all_of())
    return _figures(times, seconds)


def start(index: Path, profile: str) -> tuple[subprocess.Popen[bytes], int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    serve = ["retriever", "serve", "--index", str(index), "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    program = [sys.executable, *(["-m", "cProfile", "-o", profile] if profile else []), __file__, "--serve"]
    child = subprocess.Popen([*program, *serve], env={**os.environ, "OMP_NUM_THREADS": "1"})
    for _ in range(1200):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return child, port
        except httpx.TransportError:
            pass
        if child.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError("the retriever did not become ready within two minutes")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raw_faiss(retriever: LocalRetriever, queries: Sequence[str], seconds: float) -> None:
    dense = retriever._dense
    assert dense is not None
    vectors = dense.encoder.encode(queries, "query")
    for batch in (1, 64):
        times, at, end = list[float](), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            begun = time.perf_counter()
            dense._index.search(vectors[at : at + batch], K)
            times.append(time.perf_counter() - begun)
            at = (at + batch) % (len(vectors) - batch)
        show(f"raw FAISS, batches of {batch}", 1, _figures(times, seconds, batch))


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
        retriever = LocalRetriever.open(index)
        print(f"{options.kind}, {len(retriever.passages)} passages, {len(queries)} queries, k = {K}, {os.cpu_count()} cores\n{HEAD}")
        if options.kind == "dense":
            raw_faiss(retriever, queries, options.seconds)
        for batch in (1, 64):
            show(f"in process, batches of {batch}", 1, local_rate(retriever, queries, options.seconds, batch))
        child, port = start(index, options.profile)
        try:
            for clients in map(int, options.clients.split(",")):
                before = cpu_seconds(child.pid)
                found = http_rate(port, queries, clients, options.seconds)
                show("over HTTP", clients, found, 1000 * (cpu_seconds(child.pid) - before) / (found[0] * options.seconds))
        finally:
            child.terminate()
            child.wait()


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


def show(name: str, clients: int, found: tuple[float, float, float], cpu: float = math.nan) -> None:
    rate, median, p99 = found
    print(f"{name:<28}{clients:>8}{rate:>11.0f}{median:>9.2f}{p99:>9.2f}{'' if math.isnan(cpu) else f'{cpu:.2f}':>15}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        from rolecast.cli.main import main as rolecast

        if os.environ.get(TABLE):
            _use_table()
        del sys.argv[1]
        rolecast()
    else:
        main()
