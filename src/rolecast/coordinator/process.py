"""The coordinator as a child process of the learner's rank 0: it answers workers while the trainer computes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from rolecast.coordinator.checks import Rules
from rolecast.coordinator.client import HttpControl
from rolecast.coordinator.tokens import release_key
from rolecast.errors import RolecastError
from rolecast.installed import MissingPackageError, extras, missing
from rolecast.leasing import Handshake
from rolecast.processes import PARENT

PORT = "ROLECAST_COORDINATOR_PORT"
TOKEN = "ROLECAST_COORDINATOR_TOKEN"


@dataclass(frozen=True, slots=True)
class Served:
    """What a coordinator tells workers of its run: the config as JSON, the stage that samples, and the store with the versions."""

    run: str
    attempt: int
    config: str
    stage: str
    store: str
    lease_seconds: float
    tries: int
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class Child:
    attempt: int
    control: HttpControl


@contextmanager
def child_coordinator(served: Served, handshake: Handshake, rules: Rules) -> Iterator[Child]:
    """Starts the coordinator of an attempt and stops it at the end. Its port is ROLECAST_COORDINATOR_PORT, or 8300.

    The environment must hold the release's key, from which coordinator and workers derive their token.
    """
    release_key(os.environ)
    if lacking := missing(extras()["service"]):  # here, in one line; the child would say it in many
        raise MissingPackageError(lacking[0], "learner")
    token = secrets.token_urlsafe(24)
    port = int(os.environ.get(PORT, "8300"))
    settings = {**asdict(served), "handshake": asdict(handshake), "rules": asdict(rules), "port": port}
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
        control = HttpControl(f"http://127.0.0.1:{port}", token, check=lambda: _check(process))
        control.wait_until_ready()
        yield Child(served.attempt, control)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _check(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        raise RolecastError(
            f"the coordinator, a child process of the learner, ended with exit code {process.returncode}; its output is above, "
            "the same command goes on from the newest checkpoint"
        )
