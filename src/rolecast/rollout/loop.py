"""What a rollout worker does all its life: finds an open coordinator, works for it until it ends, and takes the next."""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from rolecast.errors import EngineError, InputError, RolecastError
from rolecast.installed import needing
from rolecast.leasing import Refused
from rolecast.loops import meanwhile
from rolecast.retries import Tries
from rolecast.rollout.complaints import Complaints
from rolecast.rollout.remote import RemoteTeam
from rolecast.rollout.search import Search
from rolecast.rollout.settings import RolloutSettings
from rolecast.rollout.waits import Waits
from rolecast.rollout.worker import Leases, Worker
from rolecast.scratch import kept
from rolecast.service.state import Service
from rolecast.store.announcements import Opening
from rolecast.wire.coordinator import Badge, RunInfo

log = logging.getLogger(__name__)
NAP = 1.0  # seconds between questions to a coordinator that has no work
LONGEST_NAP = 10.0  # between looks for an open one
LOOK = 20.0  # between looks at the others, while it works for one
AWAY = 30.0  # how long one may be away that is still announced
GIVE_BACK = 0.75  # of the time to drain, after which groups in flight are given back


class Coordinator(Leases, Protocol):
    def run_info(self) -> RunInfo: ...

    def join(self, worker: str) -> Badge: ...

    def leave(self, worker: str) -> None: ...

    def close(self) -> None: ...


class Loop:
    """In a thread of its own: playing blocks, and probes must be answered meanwhile.

    `connect`: a client of the coordinator at an address. `foreign`: how many announcements somebody with another key has made.
    `submitted`: called after each group. `waits`: what the time of playing goes to, over all runs.
    """

    def __init__(
        self, settings: RolloutSettings, service: Service, search: Search, connect: Callable[[str], Coordinator],
        foreign: Callable[[], int] = lambda: 0, submitted: Callable[[], None] = lambda: None,
        waits: Waits | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.service, self.search, self.connect = settings, service, search, connect
        self.foreign, self.submitted, self.waits = foreign, submitted, waits or Waits()
        self.over = threading.Event()
        self.complaints = Complaints(log)
        self.name = settings.name or f"{os.uname().nodename}-{uuid.uuid4().hex[:6]}"
        self.work = Path(settings.workdir or os.environ.get("ROLECAST_WORKDIR") or kept("rollout")) / self.name
        self._leave = threading.Event()  # the present coordinator, for another
        self._next: Opening | None = None  # whom it is left for
        self._known: dict[str, Coordinator] = {}  # by address: a worker that comes back is the same one to it
        self._worker: Worker | None = None
        self._busy = 0.0  # when there was a lease last

    def run(self) -> None:
        nap = NAP
        while not self.stopping:
            opening = self._find()
            if opening is None:
                self.over.wait(nap)
                nap = min(2 * nap, LONGEST_NAP)
                continue
            nap = NAP
            self._serve(opening)

    @property
    def stopping(self) -> bool:
        return self.over.is_set() or self.service.status == "draining"

    def _leaving(self) -> bool:
        return self.stopping or self._leave.is_set()

    def _overdue(self) -> bool:
        since = time.monotonic() - self.service.draining_since
        return self.service.status == "draining" and since > GIVE_BACK * self.settings.drain_seconds

    def _find(self) -> Opening | None:
        """The next coordinator; None, and said why, while there is none."""
        chosen, self._next = self._next, None
        if chosen is not None:
            return chosen
        try:
            chosen = self.search.best()
        except RolecastError as error:
            self.complaints.say("store", logging.ERROR, f"cannot see which coordinators are open: {error}")
            return None
        if chosen is None:
            for opening, reason in self.search.reasons.items():
                self._complain(opening, reason)
            if not self.search.announced:
                self._say_that_there_is_none()
        return chosen

    def _say_that_there_is_none(self) -> None:
        place, foreign = self.settings.coordinators, self.foreign()
        if foreign:
            self.complaints.say(
                "foreign", logging.ERROR,
                f"{foreign} announcements under {place} are signed with another key: give worker and learner the same ROLECAST_RELEASE_KEY",
            )  # fmt: skip
        else:
            self.complaints.say("none", logging.INFO, f"no coordinator is open: none is announced under {place}; waiting for one")

    def _complain(self, opening: Opening, reason: RolecastError) -> None:
        """Who is away may be so in several words; a refusal is as it is worded."""
        refused = isinstance(reason, (Refused, InputError))
        self.complaints.say(
            (opening.url, str(reason) if refused else "away"), logging.ERROR if refused else logging.INFO,
            f"{reason}; trying others, and this one again later",
        )  # fmt: skip

    def _serve(self, opening: Opening) -> None:
        """Works for one coordinator until it ends, refuses, or is left for another."""
        coordinator = self._coordinator(opening.url)
        self._leave.clear()
        self._worker, self._busy = None, time.monotonic()
        try:
            with self._looking(opening), ExitStack() as stack:
                self._worker = self._join(coordinator, stack)
                if self._worker is not None:
                    self._work(self._worker, opening)
                self._goodbye(coordinator)
        except (Refused, InputError) as error:  # another run or attempt, or a mismatch
            self.search.put_off(opening, error)
            self._complain(opening, error)
        except EngineError as error:  # nothing here mends it: the service says that it is broken, and is started again
            self.service.failure = error
            raise
        except RolecastError as error:  # it has ended, or is between two jobs
            self.search.put_off(opening, error)
            self._complain(opening, error)
        except Exception as error:
            self.service.failure = error
            raise
        finally:
            self._worker = None  # and with it a model, before there is another

    def _coordinator(self, url: str) -> Coordinator:
        if url not in self._known:
            for gone in self._known.keys() - {opening.url for opening in self.search.announced or ()}:
                self._known.pop(gone).close()
            self._known[url] = self.connect(url)
        return self._known[url]

    def _join(self, coordinator: Coordinator, stack: ExitStack) -> Worker | None:
        """A worker for the run that the coordinator serves, once it has a version; None if it is time to leave before that."""
        info = coordinator.run_info()
        coordinator.join(self.name)
        while info.version is None:
            self.over.wait(NAP)
            if self._leaving():
                return None
            info = coordinator.run_info()
        with needing("rollout"):
            team = RemoteTeam.of(info, self.settings.retriever_url, self.settings.judge_url, self._folder(info), self.waits)
            stack.callback(team.close)
            team.meet()
            team.load(info.version)
        self.complaints.forget()
        log.info("worker %s serves run %s at %s, stage %s, attempt %d", self.name, info.run, info.store, info.stage, info.attempt)
        return Worker(
            self.name, coordinator, team, self.settings.capacity, stopping=self._leaving, overdue=self._overdue, submitted=self.submitted
        )

    def _folder(self, info: RunInfo) -> Path:
        """Where the run's versions are kept. Those of another run make room."""
        folder = self.work / sha256(info.store.encode()).hexdigest()[:12]
        for other in self.work.glob("*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        return folder

    def _work(self, worker: Worker, opening: Opening) -> None:
        """One that does not answer may be back in a moment. Raises `RolecastError` once it has taken its announcement back, or was away
        for long."""
        tries: Tries | None = None
        while not self._leaving():
            try:
                played = worker.work()
            except (Refused, InputError, EngineError):
                raise
            except RolecastError as error:
                tries = tries or Tries(AWAY)
                pause = tries.pause()
                if pause is None or not self.search.listed(opening):
                    raise
                self.complaints.say((opening.url, "blip"), logging.INFO, f"{error}; asking again")
                self.over.wait(pause)
                continue
            tries = None
            if played:
                self._busy = time.monotonic()
                self.search.worked(opening)
            else:
                self.over.wait(NAP)

    def _goodbye(self, coordinator: Coordinator) -> None:
        try:
            coordinator.leave(self.name)
        except RolecastError as error:  # it will miss this worker
            log.debug("%s", error)

    def _idle(self) -> bool:
        """Whether there was no lease for long. Playing one may take longer than that."""
        if self._worker is not None and self._worker.holds:
            self._busy = time.monotonic()
        return time.monotonic() - self._busy > self.settings.idle_seconds

    @contextmanager
    def _looking(self, mine: Opening) -> Iterator[None]:
        """Meanwhile another thread looks whether another coordinator needs this worker more."""

        def look(over: threading.Event) -> None:
            while not over.wait(LOOK * random.uniform(1.0, 1.5)):  # so that workers do not move all at once
                try:
                    other = self.search.better(mine, self._idle())
                except RolecastError as error:
                    self.complaints.say("store", logging.ERROR, f"cannot see which coordinators are open: {error}")
                    continue
                if other is not None:
                    log.info("leaving the coordinator at %s for the one at %s, which needs a worker more", mine.url, other.url)
                    self._next = other
                    self._leave.set()
                    return

        with meanwhile("look", look):
            yield
