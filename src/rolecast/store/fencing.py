"""One learner at a time in a run that lives in a store, where no kernel holds a lock.

A learner holds the record `learner`, which it renews; another one that starts meanwhile is refused, unless the record went
stale: then its holder is taken for dead. Should it only have been slow, the numbers of attempts decide: each learner takes the
next one, and whoever finds a later one than its own writes nothing more.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rolecast.errors import FencedError, InputError, NamedStop, RolecastError
from rolecast.ports import Store

log = logging.getLogger(__name__)
LEASE = "learner"  # the key of the record
LEASE_SECONDS = 30.0  # after which a record that was not renewed is stale; it is renewed three times in that time
MOST_ATTEMPTS = 10_000


class FencedStore:
    """A store whose writes raise `FencedError` once a later attempt than its own was taken. Without an `attempt` it is the store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.attempt = 0

    def check(self) -> None:
        if self.attempt and self.store.get(_attempt(self.attempt + 1)) is not None:
            raise FencedError(
                f"this is attempt {self.attempt} of the run and a later one was started, which goes on from the last checkpoint; "
                "stop this learner, and see the log of the other"
            )

    def publish(self, folder: Path, key: str) -> None:
        self.check()
        self.store.publish(folder, key)

    def fetch(self, key: str, folder: Path) -> Path:
        return self.store.fetch(key, folder)

    def committed(self, key: str) -> bool:
        return self.store.committed(key)

    def artifacts(self, prefix: str) -> list[str]:
        return self.store.artifacts(prefix)

    def unfinished(self, prefix: str) -> list[str]:
        return self.store.unfinished(prefix)

    def put(self, key: str, data: bytes, *, absent: bool = False) -> bool:
        self.check()
        return self.store.put(key, data, absent=absent)

    def get(self, key: str) -> bytes | None:
        return self.store.get(key)

    def keys(self, prefix: str) -> list[str]:
        return self.store.keys(prefix)

    def delete(self, prefix: str) -> None:
        self.check()
        self.store.delete(prefix)


@contextmanager
def only_learner(fenced: FencedStore, where: str) -> Iterator[None]:
    """Takes the run's learner record and its next attempt, for as long as the context lasts. `where`: the run's address."""
    store = fenced.store
    require_conditional_puts(store, where)
    _wait_for_other(store, where)
    fenced.attempt = take_attempt(store)
    holder = f"{os.uname().nodename} (process {os.getpid()}, attempt {fenced.attempt})"
    over = threading.Event()
    _renew(store, holder)
    thread = threading.Thread(target=_keep, args=(fenced, holder, over), name="learner-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5.0)
        fenced.attempt = 0
        _release(store, holder)


def take_attempt(store: Store) -> int:
    """The number after the last attempt of this run. Two learners that start at once get different ones; the later fences the earlier."""
    claim = uuid.uuid4().bytes  # of two that race, each can tell its own
    for attempt in range(1, MOST_ATTEMPTS):
        if store.put(_attempt(attempt), claim, absent=True):
            return attempt
    raise NamedStop(f"the run was started {MOST_ATTEMPTS - 1} times; something restarts it for ever")


def require_conditional_puts(store: Store, where: str) -> None:
    """Raises InputError where a server overwrites what is to be written only if it is absent: attempts would not differ."""
    key = f"probe/{uuid.uuid4().hex}"
    try:
        written = [store.put(key, data, absent=True) for data in (b"first", b"second")]
    finally:
        store.delete(key)
    if written != [True, False]:
        raise InputError(
            f"{where}: the store{_server()} ignores If-None-Match, so of two writers of one key neither would be told; "
            "take a server with conditional writes, such as a present MinIO, SeaweedFS or AWS S3"
        )


def _server() -> str:
    endpoint = os.environ.get("ROLECAST_S3_ENDPOINT")
    return f" at {endpoint}" if endpoint else ""


def _attempt(number: int) -> str:
    return f"attempts/{number:04d}"


def _wait_for_other(store: Store, where: str) -> None:
    """Until the record is gone or stale. One that changes meanwhile has a live holder, whatever the clocks of two machines say."""
    first = store.get(LEASE)
    if first is None or _expired(first):
        return
    log.warning("%s was being trained by %s; waiting up to %.0f s for a sign of life", where, _holder(first), LEASE_SECONDS)
    deadline = time.monotonic() + LEASE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(LEASE_SECONDS / 30)
        present = store.get(LEASE)
        if present is None or _expired(present):
            return
        if present != first:
            raise InputError(f"{where} is being trained by {_holder(present)}; wait for it or stop it")


def _keep(fenced: FencedStore, holder: str, over: threading.Event) -> None:
    """Renews the record until it is over, or a later attempt's."""
    while not over.wait(LEASE_SECONDS / 3):
        try:
            fenced.check()
            _renew(fenced.store, holder)
        except FencedError:  # the next write says so where it is heard
            return
        except RolecastError as error:
            log.warning("the learner's record cannot be renewed: %s", error)


def _renew(store: Store, holder: str) -> None:
    store.put(LEASE, json.dumps({"holder": holder, "expires": time.time() + LEASE_SECONDS}).encode())


def _release(store: Store, holder: str) -> None:
    """Whoever comes next need not wait. What cannot be released goes stale."""
    try:
        if _holder(store.get(LEASE)) == holder:
            store.delete(LEASE)
    except RolecastError as error:
        log.warning("the learner's record cannot be given up: %s", error)


def _expired(record: bytes) -> bool:
    return float(json.loads(record)["expires"]) <= time.time()


def _holder(record: bytes | None) -> str:
    return str(json.loads(record)["holder"]) if record is not None else ""
