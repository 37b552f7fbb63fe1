"""Who samples which group: leases, their expiry, and that every group is taken once.

One `Coordinator` serves one attempt of one run. Workers pull: a lease names a group and the team version to sample it with.
A worker that dies lets its lease expire, and the group is leased again with the same seeds; whichever submission of a group
comes first is taken. The same object works in this process and behind `coordinator.app`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rolecast.errors import RolecastError
from rolecast.ports import Sampling
from rolecast.types import Question, Trajectory

log = logging.getLogger(__name__)


class Refused(RolecastError):
    """An offer or a submission that contradicts what the run is: over HTTP, 409."""


class Stopped(RolecastError):
    """No healthy worker is left for a version that several workers could not load."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """What two sides must agree on before one samples for the other. A worker learns the last two from the first version."""

    package: str  # version of rolecast, and of the plugin that the method comes from
    config: str  # fingerprint of the run's config
    renderer: str  # hash of vocabulary and chat template
    prompts: str  # hash of the method's prompts


@dataclass(frozen=True, slots=True)
class TeamVersion:
    """One manifest covers all slots: `artifact` is its key in the store. `name` is run/attempt.step."""

    name: str
    artifact: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one question. The run's seed, `id` and a member's number fix every draw of an episode."""

    id: str
    question: Question
    members: tuple[int, ...]
    phase: str
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Lease:
    id: str
    run: str
    attempt: int
    group: Group
    version: TeamVersion
    seconds: float  # until it expires, unless a heartbeat extends it


@dataclass(slots=True)
class _Held:
    lease: Lease
    worker: str
    deadline: float


@dataclass(slots=True)
class Coordinator:
    """Not thread-safe: one event loop, or one loop of a trainer, calls it."""

    run: str
    attempt: int
    handshake: Handshake
    lease_seconds: float = 60.0
    tries: int = 3  # leases of one group before it is abandoned
    clock: Callable[[], float] = time.monotonic
    version: TeamVersion | None = None
    counts: Counter[str] = field(default_factory=Counter)
    _waiting: deque[Group] = field(default_factory=deque)
    _held: dict[str, _Held] = field(default_factory=dict)
    _leased: Counter[str] = field(default_factory=Counter)  # leases of each open group so far
    _open: dict[str, Group] = field(default_factory=dict)
    _done: dict[str, list[Trajectory]] = field(default_factory=dict)
    _abandoned: dict[str, str] = field(default_factory=dict)
    _ended: dict[str, Lease] = field(default_factory=dict)  # leases of the current version that were completed, lost or given back
    _failures: dict[str, set[str]] = field(default_factory=dict)  # version -> workers that could not load it
    _workers: dict[str, float] = field(default_factory=dict)  # when each worker was last heard of

    def publish(self, version: TeamVersion) -> None:
        """From now on leases name this version. Its manifest is committed already."""
        self.version = version
        self._ended.clear()

    def add(self, groups: Sequence[Group]) -> None:
        """Opens groups for lease. One that is open, or waits to be collected, is not opened twice."""
        for group in groups:
            if group.id in self._open or group.id in self._done:
                continue
            self._open[group.id] = group
            self._waiting.append(group)

    def lease(self, worker: str, handshake: Handshake, capacity: int) -> list[Lease]:
        """Up to `capacity` groups for a worker. Raises `Refused` where its handshake differs or it is quarantined."""
        for name in ("package", "config", "renderer", "prompts"):
            ours, theirs = getattr(self.handshake, name), getattr(handshake, name)
            if ours != theirs:
                raise Refused(f"worker {worker}: its {name} is {theirs}, the run's is {ours}; deploy the same release and config")
        self._workers[worker] = self.clock()
        if self.version is None:
            return []
        if worker in self._failures.get(self.version.name, ()):
            raise Refused(f"worker {worker} is quarantined: it could not load version {self.version.name}; see its log")
        self.expire()
        leases: list[Lease] = []
        while self._waiting and len(leases) < capacity:
            group = self._waiting.popleft()
            self._leased[group.id] += 1
            self.counts["leased"] += 1
            lease = Lease(
                f"{self.attempt}/{group.id}/{self._leased[group.id]}", self.run, self.attempt, group, self.version, self.lease_seconds
            )
            self._held[lease.id] = _Held(lease, worker, self.clock() + self.lease_seconds)
            leases.append(lease)
        return leases

    def extend(self, lease_ids: Sequence[str]) -> list[str]:
        """A heartbeat: extends the leases and returns those that are still held; the rest are lost to the worker."""
        self.expire()
        held = [id for id in lease_ids if id in self._held]
        for id in held:
            self._held[id].deadline = self.clock() + self.lease_seconds
            self._workers[self._held[id].worker] = self.clock()
        return held

    def complete(self, lease_id: str, attempt: int, trajectories: Sequence[Trajectory]) -> bool:
        """Takes a group's trajectories; False for one that was taken before. Raises `Refused` for what no lease here asked for."""
        if attempt != self.attempt:
            self.counts["fenced"] += 1
            raise Refused(f"lease {lease_id} is of attempt {attempt}, this is attempt {self.attempt} of run {self.run}; lease again")
        lease = self._held[lease_id].lease if lease_id in self._held else self._ended.get(lease_id)
        if lease is None:
            raise Refused(f"lease {lease_id} is not one of attempt {self.attempt} of run {self.run} for its current version")
        if lease.group.id not in self._open:  # taken, or abandoned, meanwhile
            self._end(lease_id)
            self.counts["duplicates"] += 1
            return False
        _check(lease, trajectories)
        self._end(lease_id)
        self._close(lease.group.id)
        self._done[lease.group.id] = list(trajectories)
        self.counts["accepted"] += 1
        return True

    def fail(self, lease_id: str, reason: str, version: str | None = None) -> None:
        """A worker gives a lease back. With `version`, because it could not load it: then it gets no more leases for it."""
        held = self._held.get(lease_id)
        if held is None:
            return
        self._end(lease_id)
        if version is not None:
            self._failures.setdefault(version, set()).add(held.worker)
            self._leased[held.lease.group.id] -= 1  # the group is not to blame
        self._again(held.lease.group, f"worker {held.worker}: {reason}")

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
        for id in received:
            self._done.pop(id, None)
            self._abandoned.pop(id, None)
        return dict(self._done), dict(self._abandoned)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        return len(self._held)

    def workers(self, within: float) -> list[str]:
        """Workers heard of in the last `within` seconds."""
        return [name for name, seen in self._workers.items() if self.clock() - seen <= within]

    def _check_health(self) -> None:
        failing = self._failures.get(self.version.name, set()) if self.version else set()
        healthy = set(self.workers(2 * self.lease_seconds)) - failing
        if len(failing) >= 2 or (failing and not healthy):
            assert self.version is not None
            raise Stopped(
                f"version {self.version.name} could not be loaded by {', '.join(sorted(failing))}; see their logs, "
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
            self._waiting.append(group)

    def _end(self, lease_id: str) -> None:
        held = self._held.pop(lease_id, None)
        if held is not None:
            self._ended[lease_id] = held.lease

    def _close(self, group_id: str) -> None:
        group = self._open.pop(group_id)
        del self._leased[group_id]
        if group in self._waiting:  # it was given back before a late submission of it came
            self._waiting.remove(group)


def _check(lease: Lease, trajectories: Sequence[Trajectory]) -> None:
    """A submission is the leased group, whole, and every action of it was sampled by the leased version."""
    members = tuple(t.member for t in trajectories)
    if any(t.group != lease.group.id for t in trajectories) or members != lease.group.members:
        raise Refused(f"lease {lease.id} is for members {lease.group.members} of group {lease.group.id}, not for {members}")
    other = {action.version for t in trajectories for action in t.actions} - {lease.version.name}
    if other:
        raise Refused(f"lease {lease.id} asks for version {lease.version.name}; actions were sampled by {', '.join(sorted(other))}")
