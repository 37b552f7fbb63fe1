"""A rollout worker: leases groups, loads the version that they name, plays and scores them, and submits each when it is done.

The loop is the same in the learner's process and behind HTTP; only `Coordinator` and `Team` differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

from rolecast.errors import RolecastError, StoreError
from rolecast.leasing import Blame, Handshake, Lease, Malformed, Refused, TeamVersion, Ticket
from rolecast.loops import meanwhile
from rolecast.rollout.collect import Collector, Tell
from rolecast.rollout.complaints import Complaints
from rolecast.rollout.scheduler import ended
from rolecast.types import Trajectory

log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
NAP = 1.0  # seconds after which a remote coordinator is asked again, for more groups, what it needs no more, or to take what it did not


class Leases(Protocol):
    """A coordinator as a worker sees it."""

    def lease(self, worker: str, handshake: Handshake, capacity: int) -> list[Lease]: ...

    def extend(self, tickets: Sequence[Ticket]) -> list[str]: ...

    def complete(self, ticket: Ticket, trajectories: Sequence[Trajectory]) -> bool: ...

    def dropped(self, tickets: Sequence[Ticket]) -> list[str]: ...

    def spend(self, ticket: Ticket, trajectories: Sequence[Trajectory]) -> None: ...

    def fail(self, ticket: Ticket, reason: str, blame: Blame = "group") -> None: ...


class Team(Protocol):
    """What a worker samples with. `load` makes a version's weights answer, verified, or raises. `overlaps`: it may be called while groups of the
    version before are in flight, which go on with theirs."""

    @property
    def handshake(self) -> Handshake: ...

    @property
    def collector(self) -> Collector: ...

    @property
    def overlaps(self) -> bool: ...

    def load(self, version: TeamVersion) -> None: ...


@dataclass(slots=True)
class Worker:
    """`remote`: the coordinator is elsewhere. It is called from threads, so that episodes go on meanwhile, and gets heartbeats.

    A coordinator in this process is called from the episodes' own loop, so that a run in lockstep repeats.
    """

    name: str
    coordinator: Leases
    team: Team
    capacity: int  # groups in flight
    remote: bool = True
    stopping: Callable[[], bool] = lambda: False  # then it ends what it has, and leases no more
    overdue: Callable[[], bool] = lambda: False  # then it gives back what it has
    submitted: Callable[[], None] = lambda: None  # after each group
    complaints: Complaints = field(default_factory=lambda: Complaints(log))  # of a coordinator that is asked every second
    _held: dict[str, Lease] = field(default_factory=dict)  # by id, neither submitted nor given back
    _next: list[Lease] = field(default_factory=list)  # of another version: it is loaded when nothing older is in flight, or now

    @property
    def holds(self) -> int:
        """Leases that are neither submitted nor given back. Any thread may ask."""
        return len(self._held)

    def work(self, progress: Callable[[int], None] = lambda done: None) -> int:
        """Plays groups and submits each when it is done, until there are none to lease; how many it played.

        `progress` is told the number of episodes after each. An engine that fails is an `EngineError`; a coordinator that is away
        is raised when nothing is in flight. What is held then is given back.
        """
        numbers, count = itertools.count(1), 0
        self._next = self._lease(self.capacity)
        if not self._next:
            return 0
        try:
            with self._heartbeats(self._next[0].seconds / 3):
                while self._next and not self.stopping():
                    leases, self._next = self._next, []
                    if not self._load(leases):
                        break
                    count += self.team.collector.run(self._play(leases, lambda: progress(next(numbers))))
        except Exception as error:
            self._give_back(list(self._held.values()), str(error))
            raise
        else:
            self._give_back(list(self._held.values()), "the worker was told to end", "nobody")
        finally:
            self._held.clear()
            self._next = []
        return count

    def _load(self, leases: Sequence[Lease]) -> bool:
        version = leases[0].version  # leases of one call name one version
        try:
            self.team.load(version)
        except RolecastError as error:
            log.error("%s", error)
            # A store that is away says nothing about the version.
            self._give_back(leases, str(error), "nobody" if isinstance(error, StoreError) else "version")
            return False
        return True

    async def _play(self, leases: Sequence[Lease], episode_ended: Tell) -> int:
        """Plays groups until none is in flight and none to lease, or the next is of another version that must wait for that."""
        version, count = leases[0].version, 0
        flying: dict[asyncio.Task[list[Trajectory]], Lease] = {}
        done: dict[str, list[Trajectory]] = {}  # by lease, until the coordinator has them
        try:
            while True:
                for lease in leases:
                    flying[asyncio.ensure_future(self.team.collector.play_group(lease.group, episode_ended))] = lease
                count += len(leases)
                leases = await self._more(version, self.capacity - len(flying) - len(done))
                if self._next and self.team.overlaps:
                    leases, self._next = self._next, []
                    if await self._call(self._load, leases):
                        version = leases[0].version
                    else:
                        leases = []
                if leases:
                    continue
                if not flying and not done:
                    return count
                if flying:
                    ends, _ = await asyncio.wait(flying, timeout=NAP if self.remote else None, return_when=asyncio.FIRST_COMPLETED)
                    done |= {flying.pop(task).id: task.result() for task in list(flying) if task in ends}
                await self._submit(done, alone=not flying)
                await self._end_dropped(flying)
                if flying and self.overdue():
                    return count - len(flying)
        finally:
            await ended(list(flying))

    def _lease(self, room: int) -> list[Lease]:
        leases = self.coordinator.lease(self.name, self.team.handshake, room)
        self._held |= {lease.id: lease for lease in leases}
        return leases

    async def _more(self, version: TeamVersion, room: int) -> list[Lease]:
        """More groups for the loaded version, if there is room. Those of another are put aside."""
        if room < 1 or self._next or self.stopping():
            return []
        try:
            leases = await self._call(self._lease, room)
        except RolecastError as error:  # asked again: before long, or by the next call of `work`
            self.complaints.say("more", logging.INFO, f"no more groups: {error}")
            return []
        if leases and leases[0].version != version:
            self._next = leases
            return []
        return leases

    async def _submit(self, done: dict[str, list[Trajectory]], alone: bool) -> None:
        """Takes from `done` what the coordinator took or refused. While others are in flight, one that is away gets more time."""
        for id in list(done):
            try:
                if not await self._call(self.coordinator.complete, self._held[id], done[id]):
                    log.info("lease %s: the group was taken already", id)
            except Malformed as error:  # a fault of this worker's: given back, so that it is tried elsewhere and not for ever
                log.error("%s", error)
                await self._call(self.coordinator.fail, self._held[id], str(error))
            except Refused as error:  # another attempt has taken over, or the lease is of a version that is no longer asked for
                log.warning("%s", error)
            except RolecastError as error:
                if alone:
                    raise
                self.complaints.say("kept", logging.WARNING, f"{len(done)} groups that are played are kept: {error}")
                return
            self.complaints.forget()
            del done[id], self._held[id]
            self.submitted()

    async def _end_dropped(self, flying: dict[asyncio.Task[list[Trajectory]], Lease]) -> None:
        """Ends what nobody needs any more, in the engine too, and tells what it sampled."""
        try:
            dropped = set(await self._call(self.coordinator.dropped, list(flying.values()))) if flying else set()
        except RolecastError as error:  # asked again before long
            log.info("whether leases are dropped is not known: %s", error)
            return
        gone = {task: lease for task, lease in flying.items() if lease.id in dropped}
        if gone:
            await ended(list(gone))
        for task, lease in gone.items():
            del flying[task]
            sampled = self.team.collector.begun(lease.group) if task.cancelled() else task.result()
            try:
                await self._call(self.coordinator.spend, lease, sampled)
            except RolecastError as error:
                log.warning("lease %s was dropped, and what it sampled is not counted: %s", lease.id, error)
            del self._held[lease.id]

    async def _call(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(ask, *args, **kwargs) if self.remote else ask(*args, **kwargs)

    def _give_back(self, leases: Sequence[Lease], reason: str, blame: Blame = "group") -> None:
        """Without an answer they expire, as if the worker had died."""
        try:
            for lease in leases:
                self.coordinator.fail(lease, reason, blame)
                self._held.pop(lease.id, None)
        except RolecastError as error:
            log.warning("leases are not given back: %s", error)

    @contextlib.contextmanager
    def _heartbeats(self, interval: float) -> Iterator[None]:
        """From a thread: a step of the engine, or a version that is loaded, may take longer than a lease lasts."""
        if not self.remote:
            yield
            return

        def beat(over: threading.Event) -> None:
            while not over.wait(interval):
                try:
                    self.coordinator.extend(list(self._held.values()))
                except RolecastError as error:  # the lease may expire; the work is submitted all the same
                    self.complaints.say("heartbeat", logging.WARNING, f"heartbeat: {error}")

        with meanwhile("heartbeat", beat):
            yield
