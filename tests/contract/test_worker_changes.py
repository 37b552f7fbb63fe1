"""A worker's loop over real coordinators, each a child process of its own: it serves one after the other, and shares itself out."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolecast.coordinator.checks import Rules
from rolecast.coordinator.process import Child, Served, child_coordinator
from rolecast.errors import InputError, RolecastError
from rolecast.leasing import Group, Handshake, TeamVersion
from rolecast.ports import Sampling
from rolecast.rollout import app, search
from rolecast.rollout import loop as module
from rolecast.rollout.loop import Loop
from rolecast.rollout.settings import RolloutSettings
from rolecast.service.state import Service
from rolecast.store.announcements import Board, Opening
from rolecast.store.local import LocalStore
from rolecast.types import Action, Gold, Observation, Question, Thread, Trajectory
from rolecast.wire.coordinator import RunInfo
from tests.weed import free_ports

KEY = "a secret of this release"
HELLO = Handshake("0.1", "config", "bm25 1", "lexical", "renderer", "prompts")
RULES = Rules("decor", {"planner": "shared"}, 10)


@dataclass
class Scripted:
    """A team whose episodes are one action long. `seconds`: what an episode takes."""

    info: RunInfo
    version: str = ""
    handshake: Handshake = HELLO
    seconds: float = 0.0
    serves: list[str] = field(default_factory=list)

    @property
    def collector(self) -> Any:
        return self

    def meet(self) -> None: ...

    def close(self) -> None:
        self.serves.append(f"left {self.info.store}")

    def load(self, version: TeamVersion) -> None:
        self.version = version.name

    def run(self, main: Any) -> Any:
        return asyncio.run(main)

    async def play_group(self, group: Group, ended: Callable[[], None]) -> list[Trajectory]:
        await asyncio.sleep(self.seconds)
        return [self._episode(group, member) for member in group.members]

    def _episode(self, group: Group, member: int) -> Trajectory:
        name = f"{group.id}.{member}"
        turns = [Observation((2,), "q"), Action(f"{name}/t#0", (1,), (0.0,), self.version, "x", "stop")]
        return Trajectory(
            name, group.question, group.id, member, "decor", 0, threads=[Thread(f"{name}/t", "planner", "shared", turns=turns)]
        )


@dataclass
class Cluster:
    """A folder where coordinators are announced, and the workers that look there."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    serves: list[str] = field(default_factory=list)  # whom teams were made for
    hello: dict[str, Handshake] = field(default_factory=dict)  # of workers, by run, where it is another
    seconds: float = 0.0
    loops: list[tuple[Loop, threading.Thread]] = field(default_factory=list)

    @contextmanager
    def open(
        self, run: str, attempt: int = 1, key: str = KEY, lease_seconds: float = 2.0, port: int = 0, tries: int = 3
    ) -> Iterator[Child]:
        """A coordinator as a learner's first rank opens it, with a version that may be loaded."""
        [port] = [port] if port else free_ports(1)
        environ = {
            "ROLECAST_RELEASE_KEY": key, "ROLECAST_COORDINATOR_PORT": str(port), "ROLECAST_COORDINATOR_URL": f"http://127.0.0.1:{port}",
            "ROLECAST_COORDINATORS": str(self.folder),
        }  # fmt: skip
        for name, value in environ.items():
            self.monkeypatch.setenv(name, value)
        served = Served("demo", attempt, "{}", "rl", run, lease_seconds, tries)  # every run has the same name
        with child_coordinator(served, HELLO, RULES) as child:
            child.control.publish(TeamVersion(f"demo/{attempt}.1", "versions/1"))
            yield child

    def worker(self, **settings: Any) -> Loop:
        own = RolloutSettings(
            coordinators=str(self.folder), retriever_url="http://r", judge_url="http://j", workdir=str(self.folder.parent), **settings
        )
        loop = app.make_loop(own, Service("rollout"), KEY)
        loop.service.status = "ready"
        thread = threading.Thread(target=loop.run, daemon=True)
        thread.start()
        self.loops.append((loop, thread))
        return loop

    def team(self, info: RunInfo, *_: Any) -> Scripted:
        self.serves.append(info.store)
        return Scripted(info, handshake=self.hello.get(info.store, HELLO), seconds=self.seconds, serves=self.serves)

    def end(self) -> None:
        for loop, thread in self.loops:
            loop.over.set()
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "coordinators", monkeypatch)
    monkeypatch.setattr(module.RemoteTeam, "of", made.team)
    monkeypatch.setattr(module, "NAP", 0.02)
    monkeypatch.setattr(module, "LONGEST_NAP", 0.05)
    monkeypatch.setattr(module, "LOOK", 0.1)
    monkeypatch.setattr(search, "AWAY", (0.05, 0.2))
    monkeypatch.setattr(search, "REFUSES", (0.05, 0.2))
    yield made
    made.end()


def work(name: str, count: int = 1) -> list[Group]:
    return [Group(f"{name}{number}", Question("q", "Who?", Gold(("a",))), (0,), "train", Sampling()) for number in range(count)]


def played(child: Child, groups: list[Group], seconds: float = 20.0) -> None:
    """Until all are played and collected."""
    child.control.add(groups)
    left, deadline = {group.id for group in groups}, time.monotonic() + seconds
    while left:
        assert time.monotonic() < deadline, f"{left} are not played"
        done, abandoned = child.control.collected()
        assert not abandoned
        child.control.acknowledge(list(done))
        left -= done.keys()


def until(reached: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(child: Child) -> float:
    return gauge(child, "workers")


def held(child: Child) -> float:
    return gauge(child, "leases_held")


def gauge(child: Child, name: str) -> float:
    lines = httpx.get(f"{child.control._http._client.base_url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"rolecast_coordinator_{name} ")).split()[-1])


def test_one_worker_serves_run_after_run_though_all_have_one_name_and_attempt(cluster: Cluster) -> None:
    cluster.worker()
    for run in ("s3://b/one", "s3://b/two"):
        with cluster.open(run) as child:
            played(child, work("a", 3))
    assert [entry for entry in cluster.serves if not entry.startswith("left")] == ["s3://b/one", "s3://b/two"]
    assert cluster.serves[1] == "left s3://b/one"


def test_a_run_that_opens_while_another_is_served_gets_the_worker_at_that_one_s_end(cluster: Cluster) -> None:
    cluster.worker(idle_seconds=60)
    with cluster.open("s3://b/first") as first:
        played(first, work("a"))
        with cluster.open("s3://b/second") as second:
            second.control.add(work("b"))
            for number in range(5):
                played(first, work(f"c{number}"))
                time.sleep(0.1)
            assert "s3://b/second" not in cluster.serves, "its only worker was taken from a run that has work"
            os.kill(coordinator_of(first), signal.SIGKILL)  # also without a word
            cluster.monkeypatch.setattr(module, "AWAY", 0.3)
            played(second, work("b"))
    assert [entry for entry in cluster.serves if not entry.startswith("left")] == ["s3://b/first", "s3://b/second"]


def coordinator_of(child: Child) -> int:
    """The process that listens on a child's port."""
    port = child.control._http._client.base_url.port
    for pid in [int(pid) for file in Path(f"/proc/{os.getpid()}/task").glob("*/children") for pid in file.read_text().split()]:
        environ = Path(f"/proc/{pid}/environ").read_bytes().decode()
        if f"ROLECAST_COORDINATOR_PORT={port}" in environ:
            return pid
    raise AssertionError("no such child")


def test_workers_share_themselves_out_over_runs_that_are_open_at_once(cluster: Cluster) -> None:
    cluster.seconds = 0.02
    with cluster.open("s3://b/first") as first:
        for number in range(4):
            cluster.worker(name=f"w{number}", capacity=1)
        with busy(first, "a"):
            until(lambda: workers_of(first) == 4)
            with cluster.open("s3://b/second") as second, busy(second, "b"):
                until(lambda: workers_of(first) == workers_of(second) == 2)
                time.sleep(1)
                assert workers_of(first) == workers_of(second) == 2, "nobody moves when both are alike"


@contextmanager
def busy(child: Child, name: str) -> Iterator[None]:
    """Groups wait all the while, and all that were played are taken."""
    over, failed = threading.Event(), []

    def feed() -> None:
        number = 0
        try:
            while not over.is_set():
                number += 1
                child.control.add(work(f"{name}{number}.", 20))
                done, abandoned = child.control.collected()
                failed.extend(abandoned)
                child.control.acknowledge(list(done))
        except RolecastError as error:
            failed.append(str(error))

    thread = threading.Thread(target=feed)
    thread.start()
    yield
    over.set()
    thread.join(15)
    assert failed == []


def test_a_worker_without_a_lease_for_long_goes_where_groups_wait(cluster: Cluster) -> None:
    cluster.worker(idle_seconds=0.3)
    with cluster.open("s3://b/updating") as first:
        played(first, work("a"))
        with cluster.open("s3://b/second") as second:
            played(second, work("b", 2))
            assert workers_of(first) == 0, "it said goodbye"


def test_a_worker_is_not_idle_while_it_plays_however_long_that_takes(cluster: Cluster) -> None:
    cluster.seconds = 1.5
    cluster.worker(idle_seconds=0.3)
    with cluster.open("s3://b/slow", lease_seconds=30.0) as first, busy(first, "a"):
        until(lambda: held(first) > 0)
        with cluster.open("s3://b/second") as second:
            second.control.add(work("b"))
            time.sleep(3)
            assert cluster.serves == ["s3://b/slow"]


def test_announcements_of_the_dead_are_passed_over(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    [port] = free_ports(1)
    board = Board(LocalStore(cluster.folder), KEY)
    dead = [
        Opening(f"s3://b/dead{n}", "rl", 1, url, 1e12 + n)
        for n, url in enumerate((f"http://127.0.0.1:{port}", "http://nowhere.invalid:8300"))
    ]
    left = [board.announced(opening) for opening in dead]
    for one in left:
        one.__enter__()
    with cluster.open("s3://b/alive") as child, caplog.at_level("INFO"):
        cluster.worker()
        played(child, work("a"))
    assert cluster.serves[0] == "s3://b/alive"
    assert set(dead) <= set(board.read())


def test_the_attempt_after_a_killed_one_gets_the_worker(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AWAY", 0.3)
    cluster.worker()
    killed = cluster.open("s3://b/run")
    child = killed.__enter__()
    played(child, work("a"))
    os.kill(coordinator_of(child), signal.SIGKILL)
    with cluster.open("s3://b/run", attempt=2) as second:
        board = Board(LocalStore(cluster.folder), KEY)
        assert [opening.attempt for opening in board.read()] == [2]
        played(second, work("a", 2))
    killed.__exit__(None, None, None)


def test_an_attempt_in_the_place_of_another_is_taken_up_where_it_was(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """At one fixed address, as behind a Service; attempt 1 of a run that was made anew has even the same token but for its session."""
    [port] = free_ports(1)
    monkeypatch.setattr(search, "AWAY", (0.01, 0.01))
    cluster.worker(coordinator_url=f"http://127.0.0.1:{port}")
    for attempt in (1, 1, 2):
        with cluster.open("s3://b/run", attempt, port=port) as child:
            played(child, work("a", 2))


def test_one_that_refuses_the_worker_keeps_it_from_no_other(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.hello["s3://b/newer"] = replace(HELLO, package="0.0")
    with cluster.open("s3://b/older") as child, cluster.open("s3://b/newer"), caplog.at_level("ERROR"):
        for number in range(3):  # whoever comes to it first
            cluster.worker(name=f"w{number}")
        until(lambda: workers_of(child) == 3)
        played(child, work("a", 3))
    told = {record.message for record in caplog.records if record.name == module.log.name}
    assert all("its package is 0.0, the run's is 0.1" in text and "trying others, and this one again later" in text for text in told)


def test_a_learner_with_another_key_is_no_one_s_coordinator(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with cluster.open("s3://b/theirs", key="another secret of a release") as theirs, caplog.at_level("ERROR"):
        cluster.worker()
        until(lambda: "signed with another key: give worker and learner the same ROLECAST_RELEASE_KEY" in caplog.text)
        with cluster.open("s3://b/ours") as ours:
            played(ours, work("a"))
        assert workers_of(theirs) == 0


def test_a_worker_that_is_drained_ends_its_groups_and_gives_back_what_would_take_too_long(cluster: Cluster) -> None:
    cluster.seconds = 1.0
    with cluster.open("s3://b/run", lease_seconds=60.0, tries=1) as child:
        loop = cluster.worker(drain_seconds=20)
        child.control.add(work("a"))
        until(lambda: held(child) == 1)
        loop.service.drain()
        played(child, [])
        until(lambda: child.control.collected()[0] != {}, 5)
        assert workers_of(child) == 0
        cluster.seconds = 30.0
        loop = cluster.worker(drain_seconds=0.5)
        child.control.add(work("slow"))
        until(lambda: held(child) == 1)
        start = time.monotonic()
        loop.service.drain()
        until(lambda: held(child) == 0, 10)
        assert time.monotonic() - start < 5
        cluster.seconds = 0.0
        cluster.worker()
        until(lambda: "slow0" in child.control.collected()[0], 10)  # it cost the group no try


def test_a_learner_that_does_not_know_its_own_address_announces_nothing_and_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ROLECAST_RELEASE_KEY", KEY)
    monkeypatch.setenv("ROLECAST_COORDINATORS", str(cluster.folder))
    monkeypatch.delenv("ROLECAST_COORDINATOR_URL", raising=False)
    served = Served("demo", 1, "{}", "rl", "s3://b/run", 2.0, 3)
    with pytest.raises(InputError, match="ROLECAST_COORDINATOR_URL is not set: say at which address workers reach"):
        child_coordinator(served, HELLO, RULES).__enter__()
    monkeypatch.delenv("ROLECAST_COORDINATORS")
    [port] = free_ports(1)
    monkeypatch.setenv("ROLECAST_COORDINATOR_PORT", str(port))
    with caplog.at_level("INFO"), child_coordinator(served, HELLO, RULES):
        assert "this coordinator is not announced: only workers that are given its address will come" in caplog.text
    assert LocalStore(cluster.folder).keys("") == []
