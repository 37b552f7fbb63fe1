from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecast.errors import StoreError
from rolecast.store.local import LocalStore
from rolecast.store.watched import LEASE_KEY, LEASE_SECONDS, Lease, end_unless_watched, lease_of

KEY = lease_of("rolecast-rl-demo")
KNOWN = {LEASE_KEY: KEY}
SHORT = 0.6


class Ended:
    def __init__(self) -> None:
        self.after: float | None = None
        self.began = time.monotonic()

    def __call__(self) -> None:
        self.after = time.monotonic() - self.began

    def within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.after is None:
            time.sleep(0.02)
        return self.after is not None


class Away(LocalStore):
    """Answers nothing, for as long as it is told to."""

    away = True

    def get(self, key: str) -> bytes | None:
        if self.away:
            raise StoreError("the store is away")
        return super().get(key)


def test_a_drain_is_over_before_a_lease_is() -> None:
    assert LEASE_SECONDS == 15 * 60


def test_a_job_that_is_watched_runs_on_and_one_that_no_launcher_watches_ends(tmp_path: Path) -> None:
    store, ended = LocalStore(tmp_path), Ended()
    with Lease(store, KEY, "a-launcher", SHORT).held():
        end_unless_watched(store, SHORT, KNOWN, ended)
        assert not ended.within(3 * SHORT)
    assert store.get(KEY) is not None  # a drained launcher leaves it, and the next one renews it
    ended.began = time.monotonic()
    assert ended.within(10 * SHORT)
    assert ended.after is not None
    assert ended.after >= SHORT * 0.9


def test_the_next_launcher_takes_the_lease_over(tmp_path: Path) -> None:
    store, ended = LocalStore(tmp_path), Ended()
    end_unless_watched(store, SHORT, KNOWN, ended)
    for holder in ("first", "second", "third"):
        with Lease(store, KEY, holder, SHORT).held():
            assert not ended.within(SHORT)


def test_a_record_that_is_gone_counts_as_one_that_nobody_renews(tmp_path: Path) -> None:
    store, ended = LocalStore(tmp_path), Ended()
    end_unless_watched(store, SHORT, KNOWN, ended)
    assert ended.within(10 * SHORT)


def test_a_job_that_was_applied_by_hand_runs_on(tmp_path: Path) -> None:
    ended = Ended()
    end_unless_watched(LocalStore(tmp_path), 0.1, {}, ended)
    assert not ended.within(0.5)


def test_a_store_that_is_away_says_nothing_of_the_launcher(tmp_path: Path) -> None:
    store, ended = Away(tmp_path), Ended()
    end_unless_watched(store, SHORT, KNOWN, ended)
    assert not ended.within(3 * SHORT)
    store.away = False
    assert ended.within(10 * SHORT)


def test_a_lease_that_cannot_be_renewed_for_a_while_stops_no_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    with Lease(store, KEY, "a-launcher", 0.3).held():
        first = store.get(KEY)
        with monkeypatch.context() as away:
            away.setattr(store, "put", lambda *args, **more: (_ for _ in ()).throw(StoreError("away")))
            time.sleep(0.1)
        time.sleep(0.2)
        assert store.get(KEY) != first


def test_the_end_is_a_sigterm_which_saves(tmp_path: Path) -> None:
    code = f"""
import signal, sys, time
from pathlib import Path
from rolecast.store.local import LocalStore
from rolecast.store.watched import end_unless_watched
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
end_unless_watched(LocalStore(Path({str(tmp_path)!r})), 0.3)
time.sleep(30)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **KNOWN}, timeout=25)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr.startswith("rolecast: no launcher has watched this job for")
