"""Queries per second of the retriever over HTTP, against the same index in this process.

    python benchmarks/retriever_http.py [--passages 20000] [--seconds 5] [--kind bm25]

Builds a counterfactual world of about that many passages and asks its gold sub-queries, k = 5. The service is a process of its
own; its clients share the machine with it. One line per shape of load: callers at once × queries per request.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

import httpx

from rolecast.ports import Retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.world.counterfactual import World, build_world

K = 5
SHAPES = [(1, 1), (8, 1), (64, 1), (256, 1), (8, 8), (8, 64)]


def world_of(passages: int) -> World:
    """About as many: an entity has a handful of facts, each with a passage."""
    probe = build_world(0, {"train": 400, "dev": 300, "test": 300}, {"train": 100, "dev": 60, "test": 300})
    scale = passages / len(probe.passages)
    entities = {"train": round(1000 * scale) - 600, "dev": 300, "test": 300}
    return build_world(0, entities, {"train": 100, "dev": 60, "test": 600})


async def measure(retriever: Retriever, queries: list[str], callers: int, per_request: int, seconds: float) -> tuple[float, float, float]:
    """Queries per second, and median and 99th percentile of a request in milliseconds."""
    source, times = cycle(queries), list[float]()
    end = time.perf_counter() + seconds

    async def caller() -> None:
        while time.perf_counter() < end:
            asked, begun = [next(source) for _ in range(per_request)], time.perf_counter()
            await retriever.search(asked, K)
            times.append(time.perf_counter() - begun)
            await asyncio.sleep(0)  # an in-process search never waits

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    spent = time.perf_counter() - begun
    return len(times) * per_request / spent, 1000 * statistics.median(times), 1000 * statistics.quantiles(times, n=100)[98]


def start(index: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "rolecast.cli.main",
        "retriever",
        "serve",
        "--index",
        str(index),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    child = subprocess.Popen([*command, "--log-level", "warning"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return child, url
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the retriever did not become ready within a minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--kind", choices=["bm25", "dense", "hybrid"], default="bm25")
    options = parser.parse_args()
    world = world_of(options.passages)
    queries = [hop.query for question in world.questions["test"] for hop in question.gold.chain]
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        build_index(world.passages, index, options.kind)
        print(f"{options.kind}, {len(world.passages)} passages, {len(queries)} queries, k = {K}, {os.cpu_count()} cores")
        print(f"{'':<10}{'callers':>8}{'queries':>9}{'queries/s':>11}{'p50 ms':>9}{'p99 ms':>9}")
        local = LocalRetriever.open(index)
        show("in process", 1, 1, asyncio.run(measure(local, queries, 1, 1, options.seconds)))
        child, url = start(index)
        try:
            for callers, per_request in SHAPES:
                show(
                    "over HTTP",
                    callers,
                    per_request,
                    asyncio.run(measure(HttpRetriever(url), queries, callers, per_request, options.seconds)),
                )
        finally:
            child.terminate()
            child.wait()


def show(name: str, callers: int, per_request: int, found: tuple[float, float, float]) -> None:
    rate, median, p99 = found
    print(f"{name:<10}{callers:>8}{per_request:>9}{rate:>11.0f}{median:>9.2f}{p99:>9.2f}", flush=True)


if __name__ == "__main__":
    main()
