"""A coordinator in this process and over HTTP: the same calls, answers and refusals."""

from __future__ import annotations

import gzip
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient

from rolecast.coordinator import app
from rolecast.coordinator.app import make_app
from rolecast.coordinator.checks import Rules
from rolecast.coordinator.client import HttpControl, HttpCoordinator
from rolecast.coordinator.leases import Coordinator
from rolecast.coordinator.tokens import worker_token
from rolecast.errors import RolecastError
from rolecast.leasing import Group, Handshake, Lease, Malformed, Refused, Stopped, TeamVersion
from rolecast.ports import Sampling
from rolecast.types import Action, Gold, Hop, Observation, Question, Reward, Thread, Trajectory
from rolecast.wire import coordinator as wire

KEY = "a key of this release"
CONFIG = '{"name": "x", "judge": "a private address"}'
HELLO = Handshake("0.1", "config", "bm25 1", "lexical", "renderer", "prompts")
RULES = Rules("decor", {"planner": "shared"}, vocabulary=10)
VERSION = TeamVersion("run/1.1", "versions/1")
GOLD = Gold(("Tik Tok",), (Hop("A", "mentor", "Tik Tok", "The mentor of A is Tik Tok.", "p1", "mentor of A"),), ("p1",))


@dataclass
class Sides:
    worker: Any  # as a worker sees the coordinator
    learner: Any  # as the learner does
    url: str | None = None
    session: str = ""


@contextmanager
def over_http(coordinator: Coordinator) -> Iterator[Sides]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        made = make_app(
            coordinator,
            CONFIG,
            "second",
            "s3://b/run",
            "learner-token",
            worker_token(KEY, coordinator.run, coordinator.attempt, coordinator.session),
        )
        server = uvicorn.Server(uvicorn.Config(made, log_level="error"))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        control = HttpControl(url, "learner-token", patience=2)
        control.wait_until_ready(10)
        worker = HttpCoordinator(url, KEY, patience=2)
        worker.run_info()
        yield Sides(worker, control, url, coordinator.session)
        server.should_exit = True
        thread.join(10)


@contextmanager
def in_process(coordinator: Coordinator) -> Iterator[Sides]:
    yield Sides(coordinator, coordinator)


@pytest.fixture(params=[in_process, over_http])
def sides(request: pytest.FixtureRequest) -> Iterator[Sides]:
    make: Callable[[Coordinator], Any] = request.param
    with make(Coordinator("run", 1, HELLO, lease_seconds=0.3, tries=2, rules=RULES)) as made:
        yield made


def group(name: str) -> Group:
    return Group(name, Question(name, f"{name}: naïve «Ω»?", GOLD, "chain", 1), (0, 1), "train", Sampling(1.0, 0.9))


def played(lease: Lease) -> list[Trajectory]:
    done = []
    for member in lease.group.members:
        name = f"{lease.group.id}.{member}"
        action = Action(f"{name}/a0", (7, 9), (-0.1234567890123456, -1e-9), lease.version.name, "x\n</", "stop", False)
        thread = Thread(f"{name}#0", "planner", "shared", "parent", turns=[Observation((1, 2), "read", ("question",)), action])
        rewards = [Reward("role", action.id, None, "judge", "no chain"), Reward("team.f1", thread.id, 1 / 3)]
        done.append(
            Trajectory(
                name, lease.group.question, lease.group.id, member, "decor", 3, threads=[thread], answer=None,
                status="format", searches=2, retrieved=["p1"], rewards=rewards,
            )
        )  # fmt: skip
    return done


def test_what_is_not_there_is_named_with_what_is() -> None:
    with over_http(Coordinator("run", 1, HELLO, rules=RULES)) as made:
        for side, path in ((made.worker, "/v1/lend"), (made.learner, "/v1/control/lend")):
            with pytest.raises(
                RolecastError, match=rf"refused {path} with 404: there is no GET {path}; this service has .*POST /v1/lease, "
            ):
                side._http.get(path, wire.Load)


def test_a_group_goes_to_a_worker_and_comes_back_as_it_was(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 4)
    assert (lease.group, lease.version, lease.attempt, lease.run) == (group("a"), VERSION, 1, "run")
    assert sides.worker.complete(lease, played(lease))
    done, abandoned = sides.learner.collected()
    assert done == {"a": played(lease)}
    assert abandoned == {}
    assert sides.learner.counts["accepted"] == 1


def test_prepared_state_goes_to_a_worker_and_comes_back(sides: Sides) -> None:
    plan = {"plan": ["«Ω»", {"deep": [1, 2.5, None, True]}]}
    asked = replace(group("a"), question=replace(group("a").question, given=plan), phase="prepare")
    sides.learner.publish(VERSION)
    sides.learner.add([asked])
    [lease] = sides.worker.lease("w", HELLO, 4)
    assert lease.group == asked
    assert sides.worker.complete(lease, [replace(t, prepared=plan if t.member else None) for t in played(lease)])
    done, _ = sides.learner.collected()
    assert [(t.question.given, t.prepared) for t in done["a"]] == [(plan, None), (plan, plan)]


def test_what_nobody_needs_any_more_is_told_to_its_worker_and_what_it_sampled_to_the_learner(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a"), group("b")])
    first, second = sides.worker.lease("w", HELLO, 4)
    sides.learner.cancel(["a"])
    assert sides.worker.dropped([first, second]) == [first.id]
    with pytest.raises(Refused, match="not yours"):
        sides.worker.spend(replace(first, secret="guessed"), [])
    with pytest.raises(Refused, match="not yours"):
        sides.worker.spend(second, [])
    assert sides.learner.spent() == ({}, 1)
    sides.worker.spend(first, played(first)[1:])
    assert sides.learner.spent() == ({first.id: played(first)[1:]}, 0)
    assert sides.worker.complete(second, played(second))
    sides.learner.cancel(["b"])
    assert sides.learner.spent([first.id]) == ({"b": played(second)}, 0)
    assert sides.worker.lease("w", HELLO, 4) == []


def test_refusals_say_why(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    with pytest.raises(Refused, match="its prompts is other"):
        sides.worker.lease("w", replace(HELLO, prompts="other"), 1)
    [lease] = sides.worker.lease("w", HELLO, 1)
    with pytest.raises(Refused, match="is of attempt 0, this is attempt 1"):
        sides.worker.complete(replace(lease, attempt=0), played(lease))
    with pytest.raises(Malformed, match="members"):
        sides.worker.complete(lease, played(lease)[:1])
    assert sides.worker.complete(lease, played(lease))


@pytest.mark.parametrize("part", [field.name for field in fields(Handshake)])
def test_a_worker_that_differs_in_anything_gets_nothing(sides: Sides, part: str) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    with pytest.raises(
        Refused, match=rf"worker w\S*: its {part} is other, the run's is {getattr(HELLO, part)}; (deploy the same|give it the run's)"
    ):
        sides.worker.lease("w", replace(HELLO, **{part: "other"}), 1)
    assert sides.worker.lease("w", HELLO, 1)


def test_leases_expire_unless_a_heartbeat_comes(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 1)
    for _ in range(4):
        time.sleep(0.15)
        assert sides.worker.extend([lease]) == [lease.id]
    time.sleep(0.4)
    assert sides.worker.extend([lease]) == []
    assert [again.group.id for again in sides.worker.lease("other", HELLO, 1)] == ["a"]


def test_a_version_that_no_worker_loads_stops_the_run(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 1)
    sides.worker.fail(lease, "canary", "version")
    with pytest.raises(Stopped, match=r"run/1\.1 could not be loaded by w"):
        sides.learner.collected()


def test_what_was_sampled_beyond_the_vocabulary_or_for_another_question_is_refused(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 1)
    beyond = played(lease)
    beyond[0].threads[0].turns[0] = Observation((10,), "")
    other = [replace(t, question=replace(t.question, gold=Gold(("another",)))) for t in played(lease)]
    for wrong, reason in ((beyond, "the vocabulary has 10"), (other, "another question")):
        with pytest.raises(Malformed, match=reason):
            sides.worker.complete(lease, wrong)
    assert sides.worker.complete(lease, played(lease))


def test_a_lease_is_only_its_workers(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 1)
    guessed = replace(lease, secret="guessed")
    assert sides.worker.extend([guessed]) == []
    with pytest.raises(Refused, match="not yours"):
        sides.worker.complete(guessed, played(lease))
    with pytest.raises(Refused, match="not yours"):
        sides.worker.fail(guessed, "canary", "version")
    assert sides.worker.complete(lease, played(lease))


def test_workers_learn_what_the_run_is_and_cannot_play_the_learner() -> None:
    with over_http(Coordinator("run", 1, HELLO)) as sides:
        assert sides.worker.run_info().version is None
        sides.learner.publish(VERSION)
        info = sides.worker.run_info()
        assert (info.run, info.attempt, info.config, info.stage, info.store, info.version) == (
            "run",
            1,
            CONFIG,
            "second",
            "s3://b/run",
            VERSION,
        )
        with pytest.raises(RolecastError, match="401"):
            HttpControl(str(sides.url), "guessed").publish(VERSION)
        for token in ("x", worker_token(KEY, "run", 1, sides.session)):
            for path in ("version", "groups", "collected", "acknowledged"):
                answer = httpx.post(f"{sides.url}/v1/control/{path}", json={}, headers={"Authorization": f"Bearer {token}"})
                assert answer.status_code == 401


def test_a_stranger_learns_the_runs_name_and_no_more() -> None:
    with over_http(Coordinator("run", 1, HELLO)) as sides:
        sides.learner.publish(VERSION)
        sides.learner.add([group("a")])
        assert httpx.get(f"{sides.url}/v1/run").json() == {"run": "run", "attempt": 1, "session": sides.session}
        assert [httpx.get(f"{sides.url}{path}").status_code for path in ("/healthz", "/metrics")] == [200, 200]
        own = ("run", 1, sides.session)
        wrong = (
            "", "x", worker_token("another key of a release", *own), worker_token(KEY, "run", 2, sides.session),
            worker_token(KEY, "other", 1, sides.session), worker_token(KEY, "run", 1, Coordinator("run", 1, HELLO).session),
        )  # fmt: skip
        for token in wrong:
            shown = {"Authorization": f"Bearer {token}"} if token else {}
            for path in ("join", "leave", "lease", "heartbeat", "groups", "failure", "nothing"):
                assert httpx.post(f"{sides.url}/v1/{path}", json={}, headers=shown).status_code == 401, path
            if token:
                assert httpx.get(f"{sides.url}/v1/run", headers=shown).status_code == 401
            assert httpx.get(f"{sides.url}/v1/load", headers=shown).status_code == 401
        assert httpx.get(f"{sides.url}/openapi.json").status_code == 401
        with pytest.raises(Refused, match="ROLECAST_RELEASE_KEY"):
            HttpCoordinator(str(sides.url), "another key of a release").run_info()
        assert sides.worker.lease("w", HELLO, 9)  # nobody took it


def test_a_stranger_is_turned_away_before_his_body_is_read() -> None:
    with over_http(Coordinator("run", 1, HELLO)) as sides:
        address = urlsplit(str(sides.url))
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=5) as sock:
            sock.sendall(b"POST /v1/groups?lease=x&attempt=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")  # and nothing more
            assert sock.recv(100).startswith(b"HTTP/1.1 401 ")


def test_a_worker_goes_by_the_name_that_it_was_given() -> None:
    with over_http(Coordinator("run", 1, HELLO, lease_seconds=60)) as sides:
        sides.learner.publish(VERSION)
        sides.learner.add([group("a"), group("b")])
        other = HttpCoordinator(str(sides.url), KEY, patience=2)
        other.run_info()
        [lease], _ = sides.worker.lease("same-host", HELLO, 1), other.lease("same-host", HELLO, 0)
        sides.worker.fail(lease, "canary", "version")
        with pytest.raises(Refused, match=r"worker same-host\.1 is quarantined"):
            sides.worker.lease("same-host", HELLO, 1)
        assert len(other.lease("same-host", HELLO, 1)) == 1
        token = {"Authorization": f"Bearer {worker_token(KEY, 'run', 1, sides.session)}", "Content-Type": "application/json"}
        made_up = wire.Offer(badge=wire.Badge(worker="same-host.2", proof="x"), handshake=HELLO, capacity=1)
        answer = httpx.post(f"{sides.url}/v1/lease", content=made_up.model_dump_json(), headers=token)
        assert (answer.status_code, "is no name that this coordinator gave" in answer.text) == (409, True)


def test_garbage_is_refused_and_metrics_are_there() -> None:
    with over_http(Coordinator("run", 1, HELLO)) as sides:
        sides.learner.publish(VERSION)
        sides.learner.add([group("a"), group("b")])
        [lease] = sides.worker.lease("w", HELLO, 1)
        deep, digits = b"[" * 100_000, b'[{"id": ' + b"1" * 10_000 + b"}]"
        two = gzip.compress(b"[]") + gzip.compress(b"[]")
        for body, said in (
            (b"not gzip", "not gzip"),
            (b"", "not gzip"),
            (gzip.compress(b"[]")[:-1], "not gzip: it ends early"),
            (two, "something comes after it"),
            (gzip.compress(b"{}"), "no list of trajectories"),
            (gzip.compress(b'[{"id": "x"}]'), "0.question: Field required"),
            (gzip.compress(deep), "recursion limit"),
            (gzip.compress(digits), "no list of trajectories"),
        ):
            answer = submit(sides, lease, body)
            assert answer.status_code == 400
            assert said in answer.json()["detail"]
            assert len(answer.text) < 500
        lines = httpx.get(f"{sides.url}/metrics").text.splitlines()
        assert "rolecast_coordinator_groups_waiting 1.0" in lines
        assert "rolecast_coordinator_leases_held 1.0" in lines
        assert "rolecast_coordinator_leased_total 1.0" in lines
        assert sides.worker.complete(lease, played(lease))


def test_workers_count_from_when_they_come_until_they_leave() -> None:
    with over_http(Coordinator("run", 1, HELLO)) as sides:
        sides.learner.add([group("a"), group("b")])
        other = HttpCoordinator(str(sides.url), KEY, patience=2)
        assert (other.load().workers, other.load().waiting) == (0, 2)
        sides.worker.join("w")
        assert other.load().workers == 1
        other.join("w")
        assert other.load().workers == 2
        sides.worker.leave("w")
        assert other.load().workers == 1


def test_a_coordinator_in_the_place_of_another_of_its_name_and_attempt_gives_names_of_its_own() -> None:
    """As when a run is made anew: what the first one gave is worth nothing to the second, and the worker asks for another."""
    first, second = Coordinator("run", 1, HELLO), Coordinator("run", 1, HELLO)
    made = {id(one): make_app(one, CONFIG, "rl", "s3://b/run", "x", worker_token(KEY, "run", 1, one.session)) for one in (first, second)}
    worker = HttpCoordinator("http://coordinator", KEY, patience=0)
    for coordinator in (first, second):
        worker._http._client = TestClient(made[id(coordinator)])
        coordinator.publish(VERSION)
        coordinator.add([group("a")])
        worker.run_info()
        assert len(worker.lease("w", HELLO, 1)) == 1


def test_a_coordinator_of_another_release_is_refused_in_one_line() -> None:
    """Its answers have other keys than ours."""
    worker = HttpCoordinator("http://coordinator", KEY, patience=0)
    worker._http._client = httpx.Client(
        base_url="http://coordinator", transport=httpx.MockTransport(lambda request: httpx.Response(200, json={"run": "run", "attempt": 1}))
    )
    with pytest.raises(Refused, match=r"^the coordinator at http://coordinator answers /v1/run as another release does; deploy the same$"):
        worker.run_info()


def submit(sides: Sides, lease: Lease, body: bytes) -> httpx.Response:
    headers = {"Authorization": f"Bearer {worker_token(KEY, 'run', 1, sides.session)}", wire.SECRET: lease.secret}
    return httpx.post(f"{sides.url}/v1/groups", params={"lease": lease.id, "attempt": 1}, content=body, headers=headers)


def test_what_is_too_large_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_BODY", 200_000)
    with over_http(Coordinator("run", 1, HELLO)) as sides:
        sides.learner.publish(VERSION)
        sides.learner.add([group("a")])
        [lease] = sides.worker.lease("w", HELLO, 1)
        assert submit(sides, lease, b"x" * 200_001).status_code == 413
        bomb = zlib.compressobj(wbits=31)
        packed = b"".join(bomb.compress(b" " * 2**20) for _ in range(65)) + bomb.flush()  # 65 MiB in 64 KiB
        assert len(packed) < 200_000
        answer = submit(sides, lease, packed)
        assert answer.status_code == 413
        assert "more than 67108864 bytes" in answer.json()["detail"]
        monkeypatch.setattr(wire, "MOST_INFLATED", 1000)
        with pytest.raises(Malformed, match="413"):
            sides.worker.complete(lease, played(lease))
        monkeypatch.undo()
        assert sides.worker.complete(lease, played(lease))


def test_unpacking_stops_at_its_limit() -> None:
    bomb = zlib.compressobj(wbits=31)
    packed = b"".join(bomb.compress(b" " * 2**20) for _ in range(64)) + bomb.flush()
    tracemalloc.start()
    with pytest.raises(wire.TooLarge):
        wire.unpack(packed, 2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


def test_the_last_acknowledgement_does_not_wait(sides: Sides) -> None:
    sides.learner.publish(VERSION)
    sides.learner.add([group("a")])
    [lease] = sides.worker.lease("w", HELLO, 1)
    sides.worker.complete(lease, played(lease))
    done, _ = sides.learner.collected()
    start = time.monotonic()
    sides.learner.acknowledge(list(done))
    assert time.monotonic() - start < 2  # the long poll's patience is ten seconds
    assert sides.learner.counts["accepted"] == 1
    sides.learner.add([group("a")])  # it is forgotten, so it may be played again
    assert [again.group.id for again in sides.worker.lease("w", HELLO, 1)] == ["a"]


def test_a_coordinator_that_is_away_is_waited_for_and_then_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        time.sleep(0.05)

    with pytest.raises(RolecastError, match=f"the coordinator at {url}.* does not answer /v1/run"):
        HttpCoordinator(url, KEY, patience=0.5, sleep=nap).run_info()
    assert len(naps) > 1


def test_a_check_that_raises_ends_the_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise RolecastError("the coordinator ended with exit code -9")

    start = time.monotonic()
    with pytest.raises(RolecastError, match="exit code -9"):
        HttpControl(url, "token", patience=60, check=check).collected()
    assert time.monotonic() - start < 5
