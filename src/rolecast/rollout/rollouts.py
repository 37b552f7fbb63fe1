"""Where the learner's trajectories come from: groups go to a coordinator, workers play them, finished groups come back.

In one process the coordinator is an object and the worker takes its turn here; on a cluster both are elsewhere. The learner
sees the same two calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from rolecast.errors import RolecastError
from rolecast.leasing import Group, Handshake, TeamVersion
from rolecast.methods.base import Method
from rolecast.ports import Sampling
from rolecast.rollout.collect import Collector, Episode
from rolecast.rollout.waits import Waits
from rolecast.types import Trajectory, Version

log = logging.getLogger(__name__)


class Control(Protocol):
    """A coordinator as the learner sees it."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Groups or leases that were leased, accepted, expired, duplicates, fenced, abandoned so far."""
        ...

    def publish(self, version: TeamVersion) -> None: ...

    def add(self, groups: Sequence[Group]) -> None: ...

    def collected(self, received: Sequence[str] = ()) -> tuple[dict[str, list[Trajectory]], dict[str, str]]:
        """What is finished or abandoned; may wait until something is."""
        ...

    def acknowledge(self, received: Sequence[str]) -> None:
        """The last word on groups: nothing more is asked, so it never waits."""
        ...

    def cancel(self, ids: Sequence[str]) -> None:
        """Nobody needs these groups any more."""
        ...

    def spent(self, received: Sequence[str] = ()) -> tuple[dict[str, list[Trajectory]], int]:
        """What was sampled for nothing, by names, and how many leases have not told yet; those `received` are forgotten."""
        ...


Take = Callable[[Sequence[Trajectory]], Sequence[Episode] | None]


@dataclass(slots=True)
class _Flow:
    """Groups that are handed on one by one. `take` says which episodes are to be played besides, or None when it has enough."""

    take: Take
    sampling: Sampling
    phase: str
    flying: set[str]
    done: list[Trajectory] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    cancelled: int = 0


@dataclass(slots=True)
class Rollouts:
    """`work`: a worker's turn, where the worker lives in this process; elsewhere workers come by themselves.

    `version`: the name of the one that samples what is begun now.
    """

    method: Method
    control: Control
    work: Callable[[Callable[[int], None]], object] | None = None
    version: str = ""
    waits: Waits = field(default_factory=Waits)  # of a worker in this process; those elsewhere do not tell
    _done: dict[str, list[Trajectory]] = field(default_factory=dict)  # by group, until it is asked for
    _lost: dict[str, str] = field(default_factory=dict)
    _flow: _Flow | None = None
    _counted: list[str] = field(default_factory=list)  # names of what was spent and has been told

    def publish(self, version: Version, artifact: str = "") -> None:
        """From now on this version samples. `artifact`: its key in the store, committed."""
        self.version = str(version)
        self.control.publish(TeamVersion(self.version, artifact))

    def begin(self, episodes: Sequence[Episode], sampling: Sampling, phase: str) -> None:
        """Has episodes played that a later `collect` will ask for, by the version that samples now, or by a newer one. Workers elsewhere play
        while the caller goes on; one in this process plays at once."""
        self.control.add(_groups(episodes, sampling, phase))
        if self.work is not None:
            self.work(lambda done: None)

    def forget(self) -> None:
        """Of what was begun, what is finished is not wanted any more."""
        self._done.clear()
        self._lost.clear()

    def stream(self, episodes: Sequence[Episode], sampling: Sampling, phase: str, take: Take) -> int:
        """Hands each group to `take` as soon as it is finished, in whatever order; nothing of an abandoned one. `take` answers which episodes
        are played besides, or None when it has enough: what still plays then is cancelled. How many groups were.

        Raises as `collect` does.
        """
        groups = _groups(episodes, sampling, phase)
        flow = self._flow = _Flow(take, sampling, phase, {group.id for group in groups})
        try:
            self.control.add([group for group in groups if group.id not in self._done and group.id not in self._lost])
            self.settle()
            while flow.flying:
                if self.work is not None:
                    self.work(lambda done: None)
                self.settle()
        finally:
            self._flow = None
        _tell_lost(flow.lost, bool(flow.done), len(flow.done) + len(flow.lost))
        _sound(flow.done)
        return flow.cancelled

    def settle(self) -> None:
        """Hands on what is finished of groups that are streamed. A worker in this process calls it after each group."""
        if (flow := self._flow) is None or not flow.flying:
            return
        if not flow.flying & (self._done.keys() | self._lost.keys()):
            finished, abandoned = self.control.collected([*self._done, *self._lost])
            self._done |= finished
            self._lost |= abandoned
        ended = [id for id in [*self._done, *self._lost] if id in flow.flying]
        self.control.acknowledge(ended)
        enough = False
        for id in ended:
            flow.flying.discard(id)
            group = self._done.pop(id, [])
            flow.done += group
            if id in self._lost:
                flow.lost[id] = self._lost.pop(id)
            more = flow.take(group)
            enough |= more is None
            new = _groups(more or (), flow.sampling, flow.phase)
            flow.flying |= {one.id for one in new}
            self.control.add([one for one in new if one.id not in self._done and one.id not in self._lost])
        if enough and flow.flying:
            self.control.cancel(sorted(flow.flying))
            flow.cancelled += len(flow.flying)
            flow.flying.clear()

    def spent(self, seconds: float = 0.0) -> list[Trajectory]:
        """What was sampled of groups that were not needed any more, since it was last asked for. Workers elsewhere are heard out for so long."""
        until, found = time.monotonic() + seconds, list[Trajectory]()
        while True:
            told, untold = self.control.spent(self._counted)
            self._counted = list(told)
            found += [trajectory for one in told.values() for trajectory in one]
            if not untold or time.monotonic() >= until:
                return found
            time.sleep(0.1)

    def collect(
        self, episodes: Sequence[Episode], sampling: Sampling, phase: str, progress: Callable[[int], None] = lambda done: None
    ) -> list[Trajectory]:
        """Finished, scored trajectories in the order of `episodes`; those of abandoned groups are missing, with a warning.

        `episodes` come group by group. Raises RolecastError if every group was abandoned, or every episode failed.
        """
        groups = _groups(episodes, sampling, phase)
        wanted = {group.id for group in groups}
        self.control.add([group for group in groups if group.id not in self._done and group.id not in self._lost])
        while left := wanted - self._done.keys() - self._lost.keys():
            if self.work is not None:
                self.work(progress)
            # What was begun for later is taken too: as long as it lies there, nobody waits for something to tell.
            finished, abandoned = self.control.collected([*self._done, *self._lost])
            self._done |= finished
            self._lost |= abandoned
            if self.work is None and left & finished.keys():
                progress(sum(len(self._done[id]) for id in wanted & self._done.keys()))
        self.control.acknowledge([*self._done, *self._lost])
        done = {id: self._done.pop(id) for id in wanted & self._done.keys()}
        lost = {id: self._lost.pop(id) for id in sorted(wanted & self._lost.keys())}
        _tell_lost(lost, bool(done), len(groups))
        return _sound([trajectory for group in groups for trajectory in done.get(group.id, ())])


def _groups(episodes: Sequence[Episode], sampling: Sampling, phase: str) -> list[Group]:
    """`episodes` come group by group."""
    return [
        Group(id, members[0].question, tuple(episode.member for episode in members), phase, sampling)
        for id, members in ((id, list(of)) for id, of in groupby(episodes, key=lambda episode: episode.group))
    ]


def _tell_lost(lost: Mapping[str, str], some: bool, groups: int) -> None:
    if lost:
        log.warning("%d of %d groups were abandoned; the last: %s", len(lost), groups, next(reversed(list(lost.values()))))
        if not some:
            raise RolecastError(f"every group was abandoned, the last one since {next(reversed(list(lost.values())))}")


def _sound(done: list[Trajectory]) -> list[Trajectory]:
    faults = [t.fault for t in done if t.status == "error"]
    if faults and len(faults) == len(done):
        raise RolecastError(f"every episode failed, the last one of {faults[-1]}")
    if faults:
        log.warning("%d of %d episodes failed; the last of %s", len(faults), len(done), faults[-1])
    return done


@dataclass(slots=True)
class LocalTeam:
    """The trainer's own weights: a version is loaded as soon as it is trained, so loading is naming it."""

    collector: Collector
    handshake: Handshake
    overlaps: bool = False

    def load(self, version: TeamVersion) -> None:
        self.collector.engine.version = version.name
