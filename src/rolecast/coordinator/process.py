"""The coordinator as a child process of the learner's rank 0: it answers workers while the trainer computes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from rolecast.coordinator.client import HttpControl
from rolecast.coordinator.leases import Handshake
from rolecast.errors import RolecastError
from rolecast.ports import Store
from rolecast.processes import PARENT
from rolecast.stages.run import Run
from rolecast.types import Stage

PORT = "ROLECAST_COORDINATOR_PORT"
TOKEN = "ROLECAST_COORDINATOR_TOKEN"
MOST_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class Child:
    attempt: int
    control: HttpControl


@contextmanager
def child_coordinator(run: Run, stage: Stage, handshake: Handshake) -> Iterator[Child]:
    """Takes the run's next attempt, starts the coordinator and stops it at the end. Its port is ROLECAST_COORDINATOR_PORT, or 8300."""
    assert run.store is not None
    attempt = take_attempt(run.store)
    token = secrets.token_urlsafe(24)
    port = int(os.environ.get(PORT, "8300"))
    settings = {
        "run": run.config.name, "attempt": attempt, "handshake": asdict(handshake), "config": run.config.model_dump_json(), "store": run.location,
        "stage": stage.name, "lease_seconds": run.config.rl(stage.name).lease_seconds, "tries": run.config.rl(stage.name).lease_tries, "port": port,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "rolecast.coordinator.main"],
        stdin=subprocess.PIPE,
        env={**os.environ, TOKEN: token, PARENT: str(os.getpid())},
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings))
        process.stdin.close()
        control = HttpControl(f"http://127.0.0.1:{port}", token)
        control.wait_until_ready(lambda: _check(process))
        yield Child(attempt, control)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def take_attempt(store: Store) -> int:
    """The number after the last attempt of this run. Two learners that start at once get different ones; the later fences the earlier."""
    claim = uuid.uuid4().bytes  # of two that race, each can tell its own
    for attempt in range(1, MOST_ATTEMPTS):
        if store.put(f"attempts/{attempt:04d}", claim, absent=True):
            return attempt
    raise RolecastError(f"the run was started {MOST_ATTEMPTS - 1} times; something restarts it for ever")


def _check(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        raise RolecastError(f"the coordinator ended with exit code {process.returncode} while it started; its output is above")
