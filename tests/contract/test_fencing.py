"""One learner at a time in a store, and only the last one writes: over a folder and over a real S3 server."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rolecast.errors import FencedError, InputError, StoreError
from rolecast.ports import Store
from rolecast.store import fencing
from rolecast.store.artifact import writing
from rolecast.store.fencing import FencedStore, only_learner
from rolecast.store.local import LocalStore
from rolecast.store.uri import open_store
from tests.weed import S3Server


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    weed: S3Server = request.getfixturevalue("weed")
    return open_store(f"s3://{weed.make_bucket(f'b-{uuid.uuid4().hex[:12]}')}/run", weed.environ)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "LEASE_SECONDS", 0.9)


def artifact(folder: Path) -> Path:
    with writing(folder, "thing", {}) as partial:
        (partial / "file").write_text("x")
    return folder


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on learners renew nothing, as if their machines were paused."""
    monkeypatch.setattr(fencing, "_keep", lambda *_: None)


def test_attempts_count_up_and_nothing_is_left_but_their_numbers(store: Store) -> None:
    for number in (1, 2, 3):
        fenced = FencedStore(store)
        with only_learner(fenced, "s3://b/run"):
            assert fenced.attempt == number
        assert fenced.attempt == 0
    assert store.get("learner") is None


def test_a_second_learner_is_refused_in_one_line_while_the_first_is_alive(store: Store) -> None:
    with only_learner(FencedStore(store), "s3://b/run"):
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(InputError, match=r"s3://b/run is being trained by .* attempt 1\); wait for it or stop it") as raised:
                ExitStack().enter_context(only_learner(FencedStore(store), "s3://b/run"))
            assert time.monotonic() - start < 5
            assert "\n" not in str(raised.value)
    with only_learner(FencedStore(store), "s3://b/run"):  # and neither it nor the refused one is in the way of the next
        pass
    assert store.get("attempts/0003") is None


def test_a_learner_that_died_is_waited_for_no_longer_than_its_record_lasts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    with only_learner(FencedStore(store), "s3://b/run"):
        second = FencedStore(store)
        start = time.monotonic()
        with only_learner(second, "s3://b/run"):
            assert second.attempt == 2
        assert time.monotonic() - start < 5


def test_a_holder_whose_clock_is_ahead_does_not_hold_for_longer(store: Store) -> None:
    store.put("learner", json.dumps({"holder": "gone", "expires": time.time() + 3600}).encode())
    start = time.monotonic()
    with only_learner(FencedStore(store), "s3://b/run"):
        assert time.monotonic() - start < 5


def test_whoever_finds_a_later_attempt_writes_nothing_more(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    thing = artifact(tmp_path / "thing")
    first, second = FencedStore(store), FencedStore(store)
    with only_learner(first, "s3://b/run"):
        first.put("metrics", b"1")
        with only_learner(second, "s3://b/run"):
            writes: list[Callable[[], Any]] = [
                lambda: first.publish(thing, "thing"),
                lambda: first.put("metrics", b"2"),
                lambda: first.delete("metrics"),
                first.check,
            ]
            for write in writes:
                with pytest.raises(FencedError, match="this is attempt 1 of the run and a later one was started"):
                    write()
            assert first.get("metrics") == b"1"  # it may still read
            assert not first.committed("thing")
            second.publish(thing, "thing")
            second.put("metrics", b"3")
    assert store.get("metrics") == b"3"


def test_the_record_is_the_later_learners_whatever_the_earlier_one_does(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = fencing._keep
    silent(monkeypatch)
    with ExitStack() as later:
        with only_learner(FencedStore(store), "s3://b/run"):
            later.enter_context(only_learner(FencedStore(store), "s3://b/run"))
            record = store.get("learner")
        assert store.get("learner") == record  # the earlier one did not take it away at its end
        over: Any = type("Never", (), {"wait": lambda self, seconds: False})()
        earlier = FencedStore(store)
        earlier.attempt = 1
        keep(earlier, "the earlier one", over)  # returns: it is not its own any more
        assert store.get("learner") == record


def test_a_record_that_somebody_deleted_is_written_again(store: Store) -> None:
    with only_learner(FencedStore(store), "s3://b/run"):
        store.delete("learner")
        deadline = time.monotonic() + 10
        while store.get("learner") is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert b"attempt 1" in (store.get("learner") or b"")


def test_a_store_that_is_away_when_the_record_is_renewed_ends_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def get(self, key: str) -> bytes | None:
            raise StoreError("s3://b: cannot be reached")

    turns = iter([False, False, True])
    over: Any = type("Over", (), {"wait": lambda self, seconds: next(turns)})()
    away: Any = Away()
    fenced = FencedStore(away)
    fenced.attempt = 1
    fencing._keep(fenced, "me", over)
    assert caplog.text.count("cannot be renewed") == 2


def test_a_server_that_writes_over_what_is_there_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(LocalStore):
        def put(self, key: str, data: bytes, *, absent: bool = False) -> bool:
            return super().put(key, data)

    monkeypatch.setenv("ROLECAST_S3_ENDPOINT", "http://old-server:9000")
    store = Careless(tmp_path / "store")
    with pytest.raises(InputError, match=r"s3://b/run: the store at http://old-server:9000 ignores If-None-Match.*; take a server with"):
        ExitStack().enter_context(only_learner(FencedStore(store), "s3://b/run"))
    assert not [path for path in store.root.rglob("*") if path.is_file()]  # nothing was begun, and the probe is gone


def test_a_careful_server_passes(store: Store) -> None:
    fencing.require_conditional_puts(store, "s3://b/run")
