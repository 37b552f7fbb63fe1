"""`rolecast rollout serve`: the release's key comes from the environment, and only from there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolecast.cli import main
from rolecast.coordinator.client import HttpCoordinator
from rolecast.coordinator.tokens import release_key
from rolecast.errors import InputError, RolecastError, StoreError
from rolecast.leasing import Refused
from rolecast.rollout import app, search
from rolecast.rollout import loop as module
from rolecast.rollout.loop import Loop
from rolecast.rollout.search import Search
from rolecast.rollout.settings import RolloutSettings
from rolecast.service.state import Service
from rolecast.store.announcements import Board, Opening
from rolecast.store.local import LocalStore
from rolecast.wire.coordinator import Load, RunInfo

KEY = "0123456789abcdef"

URL = "http://127.0.0.1:9"
KEYS = [
    ("", "is not set"), (" \n", "is not set"), ("short", "has fewer than 16 characters"), (f"short{11 * ' '}\n", "has fewer than 16 characters"),
    ("0123456789abcde\udcff", "holds bytes that are no UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "fault"), [("", "is not set"), ("short", "has fewer than 16 characters")])
def test_a_worker_without_the_release_key_says_so_in_one_line(
    key: str, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLECAST_RELEASE_KEY", key)
    flags = ["--coordinator-url", URL, "--retriever-url", URL, "--judge-url", URL, "--port", "0", "--host", "127.0.0.1"]
    monkeypatch.setattr(sys, "argv", ["rolecast", "rollout", "serve", *flags])
    with pytest.raises(SystemExit) as ended:
        main.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith(f"rolecast: ROLECAST_RELEASE_KEY {fault}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("key", "fault"), KEYS)
def test_a_key_that_is_none_is_refused_with_its_fault(key: str, fault: str) -> None:
    with pytest.raises(InputError, match=f"^ROLECAST_RELEASE_KEY {fault}: .*openssl rand"):
        release_key({"ROLECAST_RELEASE_KEY": key})


def test_a_newline_at_the_end_of_the_key_is_none_of_it() -> None:
    """As of a Secret that was made from a file."""
    assert release_key({"ROLECAST_RELEASE_KEY": f" {KEY}\n"}) == release_key({"ROLECAST_RELEASE_KEY": KEY}) == KEY


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (
            [],
            "--coordinators is missing; give it or set ROLECAST_COORDINATORS, where learners announce themselves, or give the --coordinator-url of one",
        ),
        (["--coordinators", "s3://b/coordinators"], "s3://b needs ROLECAST_S3_ENDPOINT"),
        (["--coordinator-url", "a:8300"], "--coordinator-url (ROLECAST_COORDINATOR_URL) is 'a:8300'"),
    ],
)
def test_a_worker_that_is_told_of_no_coordinator_says_so_in_one_line(
    flags: list[str], fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLECAST_RELEASE_KEY", KEY)
    for name in ("ROLECAST_COORDINATORS", "ROLECAST_COORDINATOR_URL", "ROLECAST_S3_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    common = ["--retriever-url", URL, "--judge-url", URL, "--port", "0", "--host", "127.0.0.1"]
    monkeypatch.setattr(sys, "argv", ["rolecast", "rollout", "serve", *common, *flags])
    with pytest.raises(SystemExit) as ended:
        main.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith(f"rolecast: {fault}")
    assert error.count("\n") == 1


def loop_of(place: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Loop:
    monkeypatch.setattr(module, "NAP", 0.001)
    monkeypatch.setattr(module, "LONGEST_NAP", 0.001)
    monkeypatch.setattr(search, "AWAY", (0.001, 0.001))
    monkeypatch.setattr(search, "REFUSES", (0.001, 0.001))
    own = RolloutSettings(coordinators=place, retriever_url=URL, judge_url=URL, **settings)
    return app.make_loop(own, Service("rollout"), KEY)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records if record.name == module.log.name]


def test_a_worker_without_a_coordinator_says_so_once_and_not_a_line_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """None is announced, then one that is away, then one that refuses, then none."""
    loop = loop_of(str(tmp_path), monkeypatch)
    board = Board(LocalStore(tmp_path), KEY)
    asked: list[str] = []

    def load(client: HttpCoordinator) -> Load:
        asked.append("")
        if len(asked) > 20:
            raise Refused(f"refused with 409: its package is {len(asked) // 30}")
        raise RolecastError(f"does not answer ({['in time', 'by its name'][len(asked) % 2]})")

    monkeypatch.setattr(HttpCoordinator, "load", load)
    rounds, listed = [0], Search._listed

    def counted(self: Search) -> list[Opening]:
        rounds[0] += 1
        return listed(self)

    monkeypatch.setattr(Search, "_listed", counted)
    with caplog.at_level("INFO"):
        thread = threading.Thread(target=loop.run)
        thread.start()
        until(lambda: rounds[0] > 20)
        with board.announced(Opening("s3://b/runs/x", "rl", 1, URL, 1.0)):
            until(lambda: len(asked) > 55)
        seen = rounds[0]
        until(lambda: rounds[0] > seen + 20)
        loop.over.set()
        thread.join(5)
    later = "; trying others, and this one again later"
    assert said(caplog) == [
        ("INFO", f"no coordinator is open: none is announced under {tmp_path}; waiting for one"),
        ("INFO", f"does not answer (by its name){later}"),
        ("ERROR", f"refused with 409: its package is 0{later}"),
        ("ERROR", f"refused with 409: its package is 1{later}"),
    ]


def test_a_worker_with_another_key_than_those_who_announce_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = loop_of(str(tmp_path), monkeypatch)
    monkeypatch.setattr(HttpCoordinator, "load", lambda client: pytest.fail("it was shown a token"))
    with (
        caplog.at_level("INFO"),
        Board(LocalStore(tmp_path), "another key of a release").announced(Opening("s3://b/runs/x", "rl", 1, URL, 1.0)),
    ):
        assert loop._find() is None
    fault = f"1 announcements under {tmp_path} are signed with another key: give worker and learner the same ROLECAST_RELEASE_KEY"
    assert said(caplog) == [("ERROR", fault)]


def test_a_store_that_is_away_is_said_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = loop_of(str(tmp_path), monkeypatch)
    monkeypatch.setattr(Board, "read", lambda board: [])
    with caplog.at_level("ERROR"):
        assert loop._find() is None
        assert gauge(loop) == 0
        loop.search.read = away
        for _ in range(9):
            assert loop._find() is None
    assert said(caplog) == [("ERROR", "cannot see which coordinators are open: the store is away")]
    assert gauge(loop) == -1


def away() -> list[Opening]:
    raise StoreError("the store is away")


def gauge(loop: Loop) -> float | None:
    return loop.service.registry.get_sample_value("rolecast_rollout_coordinators")


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_fixed_address_is_the_only_one_and_needs_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLECAST_S3_ENDPOINT", raising=False)
    loop = loop_of("s3://b/coordinators", monkeypatch, coordinator_url="http://127.0.0.1:9")
    assert [opening.url for opening in loop.search.read()] == ["http://127.0.0.1:9"]


def test_a_worker_that_leaves_goes_to_whom_it_left_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although that may have more workers than the one that it leaves, which has no use for it."""
    loop = loop_of(str(tmp_path), monkeypatch)
    one, two = (Opening(f"s3://b/runs/{name}", "rl", 1, f"http://{name}:8300", 1.0) for name in ("one", "two"))
    loop.search.read = lambda: [one, two]
    monkeypatch.setattr(HttpCoordinator, "load", lambda client: Load(workers=5 * ("two" in str(client._http._client.base_url)), waiting=1))
    assert loop._find() == one
    loop._next = two
    assert loop._find() == two
    assert loop._find() == one


def test_a_worker_that_comes_back_is_the_same_one_to_a_coordinator_as_long_as_that_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that could not load a version is quarantined by its name: under a new one it would stop the run."""
    loop, closed = loop_of(str(tmp_path), monkeypatch), []
    monkeypatch.setattr(HttpCoordinator, "close", lambda client: closed.append(client))
    one, two = (Opening(f"s3://b/runs/{name}", "rl", 1, f"http://{name}:8300", 1.0) for name in ("one", "two"))
    loop.search.announced = [one, two]
    first = loop._coordinator(one.url)
    loop._coordinator(two.url)
    assert loop._coordinator(one.url) is first
    loop.search.announced = [two]
    loop._coordinator("http://three:8300")
    assert closed == [first]


def test_versions_of_another_run_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(str(tmp_path), monkeypatch, workdir=str(tmp_path / "work"), name="w")

    def folder(run: str) -> Path:
        info = RunInfo(run="demo", attempt=1, config="{}", stage="rl", store=f"s3://b/{run}", version=None)
        made = loop._folder(info)
        made.mkdir(parents=True, exist_ok=True)
        return made

    first = folder("one")
    assert folder("one") == first
    second = folder("two")
    assert list((tmp_path / "work" / "w").iterdir()) == [second]
