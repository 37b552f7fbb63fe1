"""A job's lease: a small record in the run's store, which the launcher that watches the job renews. A job whose record has not
changed for `LEASE_SECONDS` is watched by nobody any more, and ends itself. A job that was applied by hand has no lease and runs on.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rolecast.errors import RolecastError
from rolecast.loops import meanwhile
from rolecast.ports import Store
from rolecast.processes import say_error

log = logging.getLogger(__name__)
LEASE_KEY = "ROLECAST_LAUNCH_LEASE"  # the variable by which a launched job knows the key of its record
LEASE_SECONDS = 900.0  # longer than a drain, after which the launcher's step runs again elsewhere
RENEWALS = 15  # in that time
CHECKS = 30


def lease_of(job: str) -> str:
    """The key of a job's record, below the run."""
    return f"launches/{job}"


class Lease:
    """The launcher's side. The record's content need only change: whoever reads it compares nothing with its own clock."""

    def __init__(self, store: Store, key: str, holder: str, seconds: float = LEASE_SECONDS) -> None:
        self._store, self._key, self._holder, self._seconds = store, key, holder, seconds

    def renew(self) -> None:
        self._store.put(self._key, json.dumps({"holder": self._holder, "renewed": time.time()}).encode())

    def give_up(self) -> None:
        """The job is over. A record that cannot be deleted does no harm: the next launcher of the job writes over it."""
        try:
            self._store.delete(self._key)
        except RolecastError as error:
            log.warning("the job's lease cannot be deleted: %s", error)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Renews the record until the context ends; it stays. Raises `StoreError` if it cannot be written at all."""
        self.renew()
        with meanwhile("job-lease", self._keep, patience=5.0):
            yield

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(self._seconds / RENEWALS):
            try:
                self.renew()
            except RolecastError as error:
                log.warning("the job's lease cannot be renewed: %s", error)


def _end_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def end_unless_watched(
    store: Store,
    seconds: float = LEASE_SECONDS,
    environ: Mapping[str, str] = os.environ,
    end: Callable[[], None] = _end_this_process,
) -> None:
    """The job's side, for rank 0: tells this process to end, as SIGTERM does, once nobody watches the job. Without a lease it does nothing."""
    key = environ.get(LEASE_KEY)
    if key:
        threading.Thread(target=_await_stale, args=(store, key, seconds, end), name="watched", daemon=True).start()


def _await_stale(store: Store, key: str, seconds: float, end: Callable[[], None]) -> None:
    last, since = _read(store, key), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(seconds / CHECKS)
        present = _read(store, key)
        if present is None or present != last:  # a store that is away says nothing of the launcher
            last, since = present, time.monotonic()
    say_error(f"no launcher has watched this job for {seconds / 60:.0f} minutes: saving and ending; submit the stage again to go on")
    end()


def _read(store: Store, key: str) -> bytes | None:
    """None if nothing is known; empty if there is no record."""
    try:
        return store.get(key) or b""
    except RolecastError as error:
        log.warning("the job's lease cannot be read: %s", error)
        return None
