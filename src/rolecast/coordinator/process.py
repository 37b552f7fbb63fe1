"""The coordinator as a child process of the learner's rank 0: it answers workers while the trainer computes."""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass

from rolecast.coordinator.checks import Rules
from rolecast.coordinator.client import HttpControl
from rolecast.coordinator.tokens import release_key
from rolecast.errors import InputError, RolecastError
from rolecast.installed import MissingPackageError, extras, missing
from rolecast.leasing import Handshake
from rolecast.processes import child_of_this
from rolecast.store.announcements import ADDRESS, COORDINATORS, LET_THROUGH, PORT, Board, Opening
from rolecast.store.uri import open_store

log = logging.getLogger(__name__)
DEFAULT_PORT = 8300
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
    """Starts the coordinator of an attempt and stops it at the end. Its port is ROLECAST_COORDINATOR_PORT, or 8300; while it is open it is
    announced under ROLECAST_COORDINATORS.

    The environment must hold the release's key, from which coordinator and workers derive their token.
    """
    announced = _announced(served, release_key(os.environ), os.environ)
    if lacking := missing(extras()["service"]):  # here, in one line; the child would say it in many
        raise MissingPackageError(lacking[0], "learner")
    token = secrets.token_urlsafe(24)
    port = _port(os.environ)
    settings = {**asdict(served), "handshake": asdict(handshake), "rules": asdict(rules), "port": port}
    process = subprocess.Popen(
        [sys.executable, "-m", "rolecast.coordinator.main"],
        stdin=subprocess.PIPE,
        env={**os.environ, TOKEN: token, **child_of_this()},
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings))
        process.stdin.close()
        control = HttpControl(f"http://127.0.0.1:{port}", token, check=lambda: _check(process))
        control.wait_until_ready()
        with announced:
            yield Child(served.attempt, control)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(environ: Mapping[str, str]) -> int:
    """`InputError` where a cluster's policies let another one through: workers would only knock, and the learner wait for them."""
    port, let_through = environ.get(PORT, str(DEFAULT_PORT)), environ.get(LET_THROUGH)
    if let_through and let_through != port:
        raise InputError(
            f"the coordinator's port is {port}, and the network policies let {let_through} through: set coordinator.port of the job's spec "
            f"to {let_through}, or global.endpoints.coordinatorPort of the chart to {port}"
        )
    return int(port)


def _announced(served: Served, key: str, environ: Mapping[str, str]) -> AbstractContextManager[None]:
    """Where workers look for open coordinators, if there is such a place. `InputError` if it, or this one's own address, is not known."""
    place, url = environ.get(COORDINATORS), environ.get(ADDRESS)
    if not place:
        log.info("%s is not set, so this coordinator is not announced: only workers that are given its address will come", COORDINATORS)
        return nullcontext()
    if not url:
        raise InputError(
            f"{COORDINATORS} is {place}, but {ADDRESS} is not set: say at which address workers reach this learner's coordinator"
        )
    return Board(open_store(place, environ), key).announced(Opening(served.store, served.stage, served.attempt, url, time.time()))


def _check(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        raise RolecastError(
            f"the coordinator, a child process of the learner, ended with exit code {process.returncode}; its output is above, "
            "the same command goes on from the newest checkpoint"
        )
