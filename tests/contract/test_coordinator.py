"""A coordinator in this process and over HTTP: the same calls, answers and refusals."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import uvicorn

from rolecast.coordinator.app import make_app
from rolecast.coordinator.client import HttpControl, HttpCoordinator
from rolecast.coordinator.leases import Coordinator, Group, Handshake, Lease, Refused, Stopped, TeamVersion
from rolecast.errors import RolecastError
from rolecast.ports import Sampling
from rolecast.types import Action, Gold, Hop, Observation, Question, Reward, Thread, Trajectory

HELLO = Handshake("0.1", "config", "renderer", "prompts")
VERSION = TeamVersion("run/1.1", "versions/1")
GOLD = Gold(("Tik Tok",), (Hop("A", "mentor", "Tik Tok", "The mentor of A is Tik Tok.", "p1", "mentor of A"),), ("p1",))


@dataclass
class Sides:
    worker: Any  # as a worker sees the coordinator
    learner: Any  # as the learner does
    url: str | None = None


@contextmanager
def over_http(coordinator: Coordinator) -> Iterator[Sides]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(make_app(coordinator, '{"name": "x"}', "second", "s3://b/run", "token"), log_level="error"))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        control = HttpControl(url, "token", patience=2)
        control.wait_until_ready(lambda: None, 10)
        yield Sides(HttpCoordinator(url, patience=2), control, url)
        server.should_exit = True
        thread.join(10)


@contextmanager
def in_process(coordinator: Coordinator) -> Iterator[Sides]:
    yield Sides(coordinator, coordinator)


@pytest.fixture(params=[in_process, over_http])
def sides(request: pytest.FixtureRequest) -> Iterator[Sides]:
    make: Callable[[Coordinator], Any] = request.param
    with make(Coordinator("run", 1, HELLO, lease_seconds=0.3, tries=2)) as made:
        yield made


def group(name: str) -> Group:
    return Group(name, Question(name, f"{name}: naïve «Ω»?", GOLD, "chain", 1), (0, 1), "train", Sampling(1.0, 0.9))


def played(lease: Lease) -> list[Trajectory]:
    done = []
    for member in lease.group.members:
        action = Action(f"{lease.group.id}.{member}/a0", (7, 9), (-0.1234567890123456, -1e-9), lease.version.name, "x\n</", "stop", False)
        thread = Thread("t", "planner", "shared", "parent", turns=[Observation((1, 2), "read", ("question",)), action])
        rewards = [Reward("role", action.id, None, "judge", "no chain"), Reward("team.f1", "t", 1 / 3)]
        done.append(
            Trajectory(
                f"{lease.group.id}.{member}", lease.group.question, lease.group.id, member, "decor", 3, threads=[thread], answer=None,
                status="format", searches=2, retrieved=["p1"], rewards=rewards,
            )
        )  # fmt: skip
    return done


def test_a_group_goes_to_a_worker_and_comes_back_as_it_was(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 4)
    assert (lease.group, lease.version, lease.attempt, lease.run) == (group("a"), VERSION, 1, "run")
    assert sides.worker.complete(lease.id, 1, played(lease))
    done, abandoned = sides.learner.collected()
    assert done == {"a": played(lease)}
    assert abandoned == {}
    assert sides.learner.counts["accepted"] == 1


def test_refusals_say_why(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    with pytest.raises(Refused, match="its prompts is other"):
        sides.worker.lease("w", replace(HELLO, prompts="other"), 1)
    [lease] = sides.worker.lease("w", HELLO, 1)
    with pytest.raises(Refused, match="is of attempt 0, this is attempt 1"):
        sides.worker.complete(lease.id, 0, played(lease))
    with pytest.raises(Refused, match="members"):
        sides.worker.complete(lease.id, 1, played(lease)[:1])


def test_leases_expire_unless_a_heartbeat_comes(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 1)
    for _ in range(4):
        time.sleep(0.15)
        assert sides.worker.extend([lease.id]) == [lease.id]
    time.sleep(0.4)
    assert sides.worker.extend([lease.id]) == []
    assert [again.group.id for again in sides.worker.lease("other", HELLO, 1)] == ["a"]


def test_a_version_that_no_worker_loads_stops_the_run(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 1)
    sides.worker.fail(lease.id, "canary", VERSION.name)
    with pytest.raises(Stopped, match=r"run/1\.1 could not be loaded by w"):
        sides.learner.collected()


def test_workers_learn_what_the_run_is_and_cannot_play_the_learner() -> None:
    with over_http(Coordinator("run", 1, HELLO)) as sides:
        assert sides.worker.run_info().version is None
        sides.learner.publish(VERSION)
        info = sides.worker.run_info()
        assert (info.run, info.attempt, info.config, info.stage) == ("run", 1, '{"name": "x"}', "second")
        assert (info.store, info.version) == ("s3://b/run", VERSION)
        with pytest.raises(RolecastError, match="401"):
            HttpControl(str(sides.url), "guessed").publish(VERSION)
        for path in ("version", "groups", "collected"):
            assert httpx.post(f"{sides.url}/v1/control/{path}", json={}).status_code == 401


def test_garbage_is_refused_and_metrics_are_there() -> None:
    with over_http(Coordinator("run", 1, HELLO)) as sides:
        sides.learner.publish(VERSION)
        sides.learner.add([group("a"), group("b")])
        [lease] = sides.worker.lease("w", HELLO, 1)
        answer = httpx.post(f"{sides.url}/v1/groups", params={"lease": lease.id, "attempt": 1}, content=b"not gzip")
        assert answer.status_code == 422
        assert "not gzip" in answer.json()["detail"]
        lines = httpx.get(f"{sides.url}/metrics").text.splitlines()
        assert "rolecast_coordinator_groups_waiting 1.0" in lines
        assert "rolecast_coordinator_leases_held 1.0" in lines
        assert "rolecast_coordinator_leased_total 1.0" in lines


def test_a_coordinator_that_is_away_is_waited_for_and_then_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        time.sleep(0.05)

    with pytest.raises(RolecastError, match=f"the coordinator at {url}.* does not answer /v1/run"):
        HttpCoordinator(url, patience=0.5, sleep=nap).run_info()
    assert len(naps) > 1
