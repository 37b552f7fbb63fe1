"""The whole platform on one machine: S3, retriever, judge, rollout worker and learner, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.weed import S3Server, free_ports

BIN = Path(sys.executable).parent
RANKS = [sys.executable, "-m", "rolecast.launching.ranks"]  # a learner's container's command
RELEASE_KEY = "what learner and workers share"


class Process:
    """A child process with its output in a file; it is stopped with the cluster."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.name, self.log = name, log
        self._output = log.open("ab")
        # A group of its own, as a container has.
        self._process = subprocess.Popen(
            list(command), env=environment, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        if self.running:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """With everything that it started, as a node's kernel would: a learner's ranks have groups of their own."""
        for pid in reversed(_tree(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, seconds: float = 20.0) -> int:
        self.signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def wait(self, seconds: float) -> int:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {seconds:.0f} s:\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


class Cluster:
    def __init__(self, folder: Path, weed: S3Server, run: str) -> None:
        """`run`: the run's address, s3://bucket/NAME."""
        self.folder, self.weed, self.run = folder, weed, run
        self.retriever_port, self.judge_port, self.rollout_port, self.coordinator_port, self.rendezvous = free_ports(5)
        self.processes: list[Process] = []
        self._started = 0

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ, **self.weed.environ, "OMP_NUM_THREADS": "1", "ROLECAST_COORDINATOR_PORT": str(self.coordinator_port),
            "ROLECAST_RELEASE_KEY": RELEASE_KEY,
            "ROLECAST_COORDINATOR_URL": f"http://127.0.0.1:{self.coordinator_port}",
            "ROLECAST_COORDINATORS": f"{self.run.rsplit('/', 1)[0]}/coordinators",
            "ROLECAST_RETRIEVER_URL": f"http://127.0.0.1:{self.retriever_port}", "ROLECAST_JUDGE_URL": f"http://127.0.0.1:{self.judge_port}",
        }  # fmt: skip

    def start(self, name: str, command: Sequence[str], **extra: str) -> Process:
        """A fresh start of a part has a fresh disk, as a pod would."""
        self._started += 1
        work = self.folder / f"work-{self._started}"
        work.mkdir()
        process = Process(name, command, {**self.environment, "ROLECAST_WORKDIR": str(work), **extra}, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def retriever(self) -> Process:
        return self._service("retriever", self.retriever_port, "--index", f"{self.run}/index")

    def judge(self) -> Process:
        return self._service("judge", self.judge_port)

    def rollout(self, port: int = 0, capacity: int = 4) -> Process:
        """It is told of no coordinator: it finds the learner's where that is announced. `port`: of one beside others."""
        return self._service("rollout", port or self.rollout_port, "--capacity", str(capacity), ROLECAST_COORDINATOR_URL="")

    def _service(self, part: str, port: int, *flags: str, **extra: str) -> Process:
        process = self.start(part, [str(BIN / "rolecast"), part, "serve", "--host", "127.0.0.1", "--port", str(port), *flags], **extra)
        self.until(lambda: _answers(f"http://127.0.0.1:{port}/readyz"), process, 60)
        return process

    def learner(self, stage: str, ranks: int = 2) -> Process:
        return self.start("learner", [*RANKS, stage, self.run, f"--procs={ranks}"])

    def nodes(self, stage: str, count: int) -> list[Process]:
        """A learner over several nodes of one rank each, every node with a disk of its own."""
        return [
            self.start(
                f"learner-{node}", [*RANKS, stage, self.run, f"--nodes={count}"],
                PET_NODE_RANK=str(node), PET_MASTER_ADDR="127.0.0.1", PET_MASTER_PORT=str(self.rendezvous),
            )
            for node in range(count)
        ]  # fmt: skip

    def until(self, ready: Callable[[], bool], alive: Process, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert alive.running, f"{alive.name} ended:\n{alive.tail()}"
            assert time.monotonic() < deadline, f"{alive.name} is not where it should be after {seconds:.0f} s:\n{alive.tail()}"
            time.sleep(0.02)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = [int(child) for child in children.read_text().split()] if children.exists() else []
    return [pid, *(descendant for child in below for descendant in _tree(child))]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
