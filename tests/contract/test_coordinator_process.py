"""The coordinator as the learner's child: it takes whoever has the release's key, and its death is noticed at once."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rolecast.config import RunConfig
from rolecast.coordinator.checks import Rules
from rolecast.coordinator.client import HttpCoordinator
from rolecast.coordinator.process import child_coordinator
from rolecast.errors import InputError, RolecastError
from rolecast.installed import MissingPackageError
from rolecast.leasing import Group, Handshake, Refused, TeamVersion
from rolecast.ports import Sampling
from rolecast.stages.publish import served
from rolecast.stages.run import Run
from rolecast.store.fencing import FencedStore, only_learner
from rolecast.store.local import LocalStore
from rolecast.types import Gold, Question
from tests.weed import free_ports

HELLO = Handshake("0.1", "config", "bm25 1", "lexical", "renderer", "prompts")
RULES = Rules("decor", {"planner": "shared"}, 10)
RL = RunConfig().schedule[-1]
KEY = "a secret of this release"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    [port] = free_ports(1)
    monkeypatch.setenv("ROLECAST_COORDINATOR_PORT", str(port))
    monkeypatch.setenv("ROLECAST_RELEASE_KEY", KEY)
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", RunConfig(name="here"), FencedStore(LocalStore(tmp_path / "store")), "s3://b/here")


def test_a_port_that_policies_cut_off_is_refused_before_anybody_waits(url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECAST_COORDINATOR_PORT_LET_THROUGH", "8400")
    with (
        pytest.raises(InputError, match=r"policies let 8400 through: set coordinator\.port"),
        child_coordinator(served(run, RL), HELLO, RULES),
    ):
        pass


def children() -> list[int]:
    return [int(pid) for file in Path(f"/proc/{os.getpid()}/task").glob("*/children") for pid in file.read_text().split()]


def test_a_worker_with_the_key_finds_the_attempt_and_no_secret_is_in_a_command_line(
    url: str, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(run.store, FencedStore)
    before = set(children())
    with only_learner(run.store, run.location), child_coordinator(served(run, RL), HELLO, RULES) as child:
        child.control.publish(TeamVersion("here/1.0", "versions/1"))
        child.control.add([Group("g", Question("q", "Who?", Gold(("a",))), (0,), "train", Sampling())])
        worker = HttpCoordinator(url, KEY, patience=0)
        info = worker.run_info()
        assert (info.run, info.attempt, info.store) == ("here", 1, "s3://b/here")
        assert child.attempt == 1
        [lease] = worker.lease("w", HELLO, 1)
        with pytest.raises(Refused, match="401"):
            HttpCoordinator(url, "another secret of a release", patience=0).run_info()
        [pid] = set(children()) - before
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert "rolecast.coordinator.main" in command
    said = "".join(capfd.readouterr())
    for secret in (KEY, lease.secret):
        assert secret not in command
        assert secret not in said


def test_a_learner_without_the_key_says_how_to_make_one(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, fault in (("", "is not set"), ("short", "has fewer than 16 characters")):
        monkeypatch.setenv("ROLECAST_RELEASE_KEY", value)
        with pytest.raises(InputError, match=f"ROLECAST_RELEASE_KEY {fault}.*openssl rand"):
            child_coordinator(served(run, RL), HELLO, RULES).__enter__()


def test_a_learner_that_lacks_what_the_coordinator_needs_says_so_in_its_place(url: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lacking_uvicorn)
    before = set(children())
    with (
        pytest.raises(MissingPackageError, match=r"^uvicorn is not installed; .*\[learner\]'"),
        child_coordinator(served(run, RL), HELLO, RULES),
    ):
        pass
    assert set(children()) == before


def lacking_uvicorn(name: str) -> str:
    if name == "uvicorn":
        raise importlib.metadata.PackageNotFoundError(name)
    return "1"


def test_a_coordinator_that_dies_in_a_long_poll_is_noticed_in_seconds_with_its_exit_code(url: str, run: Run) -> None:
    before = set(children())
    with child_coordinator(served(run, RL), HELLO, RULES) as child:
        [pid] = set(children()) - before
        threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()
        start = time.monotonic()
        with pytest.raises(RolecastError, match="ended with exit code -9"):
            child.control.collected()
        assert time.monotonic() - start < 5
