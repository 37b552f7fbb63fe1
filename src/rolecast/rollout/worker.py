"""A rollout worker: leases groups, loads the version that they name, plays and scores them, and submits them.

The loop is the same in the learner's process and behind HTTP; only `Coordinator` and `Team` differ.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rolecast.coordinator.leases import Blame, Handshake, Lease, Refused, TeamVersion, Ticket
from rolecast.errors import RolecastError, StoreError
from rolecast.rollout.collect import Collector, Episode
from rolecast.types import Trajectory

log = logging.getLogger(__name__)


class Leases(Protocol):
    """A coordinator as a worker sees it."""

    def lease(self, worker: str, handshake: Handshake, capacity: int) -> list[Lease]: ...

    def extend(self, tickets: Sequence[Ticket]) -> list[str]: ...

    def complete(self, ticket: Ticket, trajectories: Sequence[Trajectory]) -> bool: ...

    def fail(self, ticket: Ticket, reason: str, blame: Blame = "group") -> None: ...


class Team(Protocol):
    """What a worker samples with. `load` makes a version's weights answer, verified, or raises."""

    @property
    def handshake(self) -> Handshake: ...

    @property
    def collector(self) -> Collector: ...

    def load(self, version: TeamVersion) -> None: ...


@dataclass(slots=True)
class Worker:
    name: str
    coordinator: Leases
    team: Team
    capacity: int  # groups in flight
    beat: bool = True  # heartbeats from a thread; a worker in the coordinator's own process needs none

    def work(self, progress: Callable[[int], None] = lambda done: None) -> int:
        """Leases once, plays what it got and submits it; how many groups were leased."""
        leases = self.coordinator.lease(self.name, self.team.handshake, self.capacity)
        if not leases:
            return 0
        with self._heartbeats(leases):  # also while a version is fetched: a store that is away is waited for longer than a lease lasts
            if not self._loaded(leases):
                return 0
            done = self._play(leases, progress)
        for lease, trajectories in zip(leases, done, strict=True):
            self._submit(lease, trajectories)
        return len(leases)

    def _loaded(self, leases: Sequence[Lease]) -> bool:
        """Whether the version answers; otherwise the leases are given back. A store that is away says nothing about the version."""
        try:
            self.team.load(leases[0].version)
        except RolecastError as error:
            log.error("%s", error)
            for lease in leases:
                self.coordinator.fail(lease, str(error), "nobody" if isinstance(error, StoreError) else "version")
            return False
        return True

    def _play(self, leases: Sequence[Lease], progress: Callable[[int], None]) -> list[list[Trajectory]]:
        """The episodes of all leases at once, so that their turns share batches. Leases of one call have one phase."""
        groups = [lease.group for lease in leases]
        episodes = [Episode(group.question, group.id, member) for group in groups for member in group.members]
        played = self.team.collector.collect(episodes, groups[0].sampling, groups[0].phase, progress)
        ends = iter(played)
        return [[next(ends) for _ in group.members] for group in groups]

    def _submit(self, lease: Lease, trajectories: Sequence[Trajectory]) -> None:
        try:
            if not self.coordinator.complete(lease, trajectories):
                log.info("lease %s: the group was taken already", lease.id)
        except Refused as error:  # another attempt has taken over, or the lease is of a version that is no longer asked for
            log.warning("%s", error)

    @contextlib.contextmanager
    def _heartbeats(self, leases: Sequence[Lease]) -> Iterator[None]:
        if not self.beat:
            yield
            return
        over = threading.Event()

        def beat() -> None:
            while not over.wait(leases[0].seconds / 3):
                try:
                    self.coordinator.extend(leases)
                except RolecastError as error:  # the lease may expire; the work is submitted all the same
                    log.warning("heartbeat: %s", error)

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
