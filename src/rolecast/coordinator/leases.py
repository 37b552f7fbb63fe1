"""Who samples which group: leases, their expiry, and that every group is taken once.

One `Coordinator` serves one attempt of one run. Workers pull: a lease names a group and the team version to sample it with.
A worker that dies lets its lease expire, and the group is leased again with the same seeds; whichever submission of a group
comes first is taken. The same object works in this process and behind `coordinator.app`.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count

from rolecast.coordinator.checks import Rules, faults
from rolecast.coordinator.tokens import same
from rolecast.leasing import Blame, Group, Handshake, Lease, Malformed, Refused, Stopped, TeamVersion, Ticket
from rolecast.types import Trajectory

log = logging.getLogger(__name__)
MOST_ENDED, MOST_WORKERS = 10_000, 10_000  # leases that ended and workers that are remembered: the oldest are forgotten


@dataclass(slots=True)
class _Held:
    lease: Lease
    worker: str
    deadline: float


@dataclass(slots=True)
class Coordinator:
    """Not thread-safe: one event loop, or one loop of a trainer, calls it. Without `rules`, vocabulary and roles are not checked.

    `staleness`: how many versions may have followed the one that a group is sampled by when it is taken.
    """

    run: str
    attempt: int
    handshake: Handshake
    lease_seconds: float = 60.0
    tries: int = 3  # leases of one group before it is abandoned
    clock: Callable[[], float] = time.monotonic
    rules: Rules | None = None
    staleness: int = 0
    version: TeamVersion | None = None
    session: str = field(default_factory=lambda: secrets.token_hex(8))  # of this object: tells it from others of the same run and attempt
    counts: Counter[str] = field(default_factory=Counter)
    _waiting: OrderedDict[str, Group] = field(default_factory=OrderedDict)
    _held: dict[str, _Held] = field(default_factory=dict)
    _leased: Counter[str] = field(default_factory=Counter)  # leases of each open group so far
    _numbers: count[int] = field(default_factory=lambda: count(1))  # of leases
    _open: dict[str, Group] = field(default_factory=dict)
    _done: dict[str, list[Trajectory]] = field(default_factory=dict)
    _abandoned: dict[str, str] = field(default_factory=dict)
    _ended: OrderedDict[str, Lease] = field(
        default_factory=OrderedDict
    )  # leases of the current version that were completed, lost or given back
    _sampling: list[TeamVersion] = field(default_factory=list)  # versions whose groups are taken, the current one last
    _dropped: OrderedDict[str, Lease] = field(
        default_factory=OrderedDict
    )  # leases that nobody needs, whose workers have not told their cost
    _spent: OrderedDict[str, list[Trajectory]] = field(default_factory=OrderedDict)  # what such leases sampled, until the learner has it
    _failing: set[str] = field(default_factory=set)  # workers that could not load the current version
    _workers: OrderedDict[str, float] = field(default_factory=OrderedDict)  # when each was last heard of, that one last

    def publish(self, version: TeamVersion) -> None:
        """From now on leases name this version. Its manifest is committed already. What is being sampled by one that is now too old is
        sampled again, by this one; what such a one sampled and nobody has collected is dropped."""
        if version == self.version:
            return
        self.version = version
        self._sampling = [*self._sampling, version][-1 - self.staleness :]
        for id, held in list(self._held.items()):
            if held.lease.version not in self._sampling:
                self._drop(id)
                if held.lease.group.id in self._open:
                    self.counts["stale"] += 1
                    self._leased[held.lease.group.id] -= 1  # it is nobody's fault
                    self._again(held.lease.group, f"version {held.lease.version.name} is too old")
        taken = {one.name for one in self._sampling}
        for id, done in list(self._done.items()):
            if any(action.version not in taken for t in done for action in t.actions):
                del self._done[id]
                self._keep_spent(id, done)
                self.counts["stale"] += 1
        self._ended.clear()
        self._failing.clear()

    def add(self, groups: Sequence[Group]) -> None:
        """Opens groups for lease. One that is open, or waits to be collected, is not opened twice."""
        for group in groups:
            if group.id in self._open or group.id in self._done:
                continue
            self._open[group.id] = self._waiting[group.id] = group

    def join(self, worker: str) -> None:
        """A worker is coming. It counts from now on, before it has loaded what it leases with."""
        self._heard(worker)

    def leave(self, worker: str) -> None:
        """A worker has gone, of its own will and with nothing in its hands. It counts no longer."""
        self._workers.pop(worker, None)

    def lease(self, worker: str, handshake: Handshake, capacity: int) -> list[Lease]:
        """Up to `capacity` groups for a worker. Raises `Refused` where its handshake differs or it is quarantined."""
        for name in asdict(self.handshake):
            ours, theirs = getattr(self.handshake, name), getattr(handshake, name)
            if ours != theirs:
                mend = "give it the run's" if name in ("index", "judge") else "deploy the same release and config"
                raise Refused(f"worker {worker}: its {name} is {theirs}, the run's is {ours}; {mend}")
        self._heard(worker)
        if self.version is None:
            return []
        if worker in self._failing:
            raise Refused(f"worker {worker} is quarantined: it could not load version {self.version.name}; see its log")
        self.expire()
        leases: list[Lease] = []
        while self._waiting and len(leases) < capacity:
            _, group = self._waiting.popitem(last=False)
            self._leased[group.id] += 1
            self.counts["leased"] += 1
            id = f"{self.attempt}/{group.id}/{next(self._numbers)}"
            lease = Lease(id, self.attempt, secrets.token_urlsafe(16), self.run, group, self.version, self.lease_seconds)
            self._held[lease.id] = _Held(lease, worker, self.clock() + self.lease_seconds)
            leases.append(lease)
        return leases

    def extend(self, tickets: Sequence[Ticket]) -> list[str]:
        """A heartbeat: extends the leases and returns the ids of those that are still held; the rest are lost to the worker."""
        self.expire()
        held = [self._held[t.id] for t in tickets if t.id in self._held and same(t.secret, self._held[t.id].lease.secret)]
        for one in held:
            one.deadline = self.clock() + self.lease_seconds
            self._heard(one.worker)
        return [one.lease.id for one in held]

    def lease_of(self, ticket: Ticket) -> Lease:
        """The lease that a ticket speaks for. Raises `Refused` for one of another attempt or version, or with another secret."""
        if ticket.attempt != self.attempt:
            self.counts["fenced"] += 1
            raise Refused(
                f"lease {ticket.id} is of attempt {ticket.attempt}, this is attempt {self.attempt} of run {self.run}; lease again"
            )
        lease = self._held[ticket.id].lease if ticket.id in self._held else self._ended.get(ticket.id)
        if lease is None or not same(ticket.secret, lease.secret):
            raise Refused(
                f"lease {ticket.id} is not one of attempt {self.attempt} of run {self.run} for its current version, or not yours; lease again"
            )
        return lease

    def complete(self, ticket: Ticket, trajectories: Sequence[Trajectory]) -> bool:
        """Takes a group's trajectories; False for one that was taken before. Raises `Refused` for what no lease here asked for."""
        lease = self.lease_of(ticket)
        group = lease.group
        if lease.id in self._dropped:  # its worker had not heard of it
            self.spend(ticket, trajectories)
        if group.id not in self._open:  # taken, abandoned or cancelled meanwhile
            self._end(lease.id)
            self.counts["duplicates"] += 1
            return False
        if fault := next(faults(lease, trajectories, self.rules), None):
            raise Malformed(f"lease {lease.id}: {fault}")
        self._end(lease.id)
        self._close(group.id)
        self._drop_closed()
        self._done[group.id] = [replace(t, question=group.question) for t in trajectories]
        self.counts["accepted"] += 1
        return True

    def cancel(self, ids: Sequence[str]) -> None:
        """Groups that nobody needs any more. Who samples one is told so (`dropped`), and tells what it sampled (`spend`)."""
        for id in ids:
            if id in self._done:
                self._keep_spent(id, self._done.pop(id))
            elif id in self._open:
                self._close(id)
            else:
                continue
            self.counts["cancelled"] += 1
        self._drop_closed()

    def dropped(self, tickets: Sequence[Ticket]) -> list[str]:
        """The ids of those leases that nobody needs any more: their groups were cancelled, or are to be sampled by a newer version."""
        return [t.id for t in tickets if t.id in self._dropped and same(t.secret, self._dropped[t.id].secret)]

    def spend(self, ticket: Ticket, trajectories: Sequence[Trajectory]) -> None:
        """What a dropped lease sampled until it was ended: it counts in the cost, and in nothing else. Raises as `complete` does."""
        lease = self._dropped.get(ticket.id)
        if lease is None or ticket.attempt != self.attempt or not same(ticket.secret, lease.secret):
            raise Refused(f"lease {ticket.id} is not one that attempt {self.attempt} of run {self.run} has dropped, or not yours")
        if fault := next(faults(lease, trajectories, self.rules, whole=False), None):
            raise Malformed(f"lease {lease.id}: {fault}")
        del self._dropped[lease.id]
        self._keep_spent(lease.id, list(trajectories))

    def spent(self, received: Sequence[str] = ()) -> tuple[dict[str, list[Trajectory]], int]:
        """What was sampled for nothing, by names that tell one from another, and how many leases have not told yet. Those `received` are
        forgotten."""
        for name in received:
            self._spent.pop(name, None)
        return dict(self._spent), len(self._dropped)

    def fail(self, ticket: Ticket, reason: str, blame: Blame = "group") -> None:
        """A worker gives a lease back. Where it could not load the lease's version, it gets no more leases for that."""
        if ticket.id not in self._held:
            return
        lease = self.lease_of(ticket)
        worker = self._held[lease.id].worker
        self._end(lease.id)
        if blame == "version" and lease.version == self.version:
            self._failing.add(worker)
        if blame != "group":
            self._leased[lease.group.id] -= 1
        self._again(lease.group, f"worker {worker}: {reason}")

    def expire(self) -> None:
        """Leases whose worker went silent: their groups are leased again, or abandoned after `tries`."""
        now = self.clock()
        for id, held in list(self._held.items()):
            if held.deadline <= now:
                self._end(id)
                self.counts["expired"] += 1
                self._again(held.lease.group, f"worker {held.worker} was silent for {self.lease_seconds:.0f} s")

    def collected(self, received: Sequence[str] = ()) -> tuple[dict[str, list[Trajectory]], dict[str, str]]:
        """Completed groups, and abandoned ones with the last reason. Those `received` are forgotten: an answer may get lost."""
        self.expire()
        self._check_health()
        self.acknowledge(received)
        return dict(self._done), dict(self._abandoned)

    def acknowledge(self, received: Sequence[str]) -> None:
        for id in received:
            self._done.pop(id, None)
            self._abandoned.pop(id, None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        return len(self._held)

    def workers(self, within: float) -> list[str]:
        """Workers heard of in the last `within` seconds."""
        return [name for name, seen in self._workers.items() if self.clock() - seen <= within]

    def _heard(self, worker: str) -> None:
        self._workers[worker] = self.clock()
        self._workers.move_to_end(worker)
        if len(self._workers) > MOST_WORKERS:
            self._workers.popitem(last=False)

    def _check_health(self) -> None:
        healthy = set(self.workers(2 * self.lease_seconds)) - self._failing
        if len(self._failing) >= 2 or (self._failing and not healthy):
            assert self.version is not None
            raise Stopped(
                f"version {self.version.name} could not be loaded by {', '.join(sorted(self._failing)[:10])}; see their logs, "
                f"compare the artifact {self.version.artifact} with its manifest"
            )

    def _again(self, group: Group, reason: str) -> None:
        if group.id not in self._open:
            return
        if self._leased[group.id] >= self.tries:
            log.warning("group %s is abandoned after %d leases: %s", group.id, self.tries, reason)
            self._close(group.id)
            self._abandoned[group.id] = reason
            self.counts["abandoned"] += 1
        else:
            log.info("group %s is leased again: %s", group.id, reason)
            self._waiting[group.id] = group

    def _end(self, lease_id: str) -> None:
        held = self._held.pop(lease_id, None)
        if held is not None:
            self._ended[lease_id] = held.lease
            if len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)

    def _drop(self, lease_id: str) -> None:
        """Ends a lease whose worker is still at it."""
        lease = self._held[lease_id].lease
        self._end(lease_id)
        self._dropped[lease_id] = lease
        if len(self._dropped) > MOST_ENDED:
            self._dropped.popitem(last=False)

    def _drop_closed(self) -> None:
        for id in [id for id, held in self._held.items() if held.lease.group.id not in self._open]:
            self._drop(id)

    def _keep_spent(self, name: str, trajectories: list[Trajectory]) -> None:
        self._spent[name] = trajectories
        if len(self._spent) > MOST_ENDED:
            self._spent.popitem(last=False)

    def _close(self, group_id: str) -> None:
        del self._open[group_id], self._leased[group_id]
        self._waiting.pop(group_id, None)  # it was given back before a late submission of it came
