"""Where the learner's trajectories come from: groups go to a coordinator, workers play them, finished groups come back.

In one process the coordinator is an object and the worker takes its turn here; on a cluster both are elsewhere. The learner
sees the same two calls.
"""

from __future__ import annotations

import logging
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
        if lost:
            log.warning("%d of %d groups were abandoned; the last: %s", len(lost), len(groups), next(reversed(lost.values())))
        if not done:
            raise RolecastError(f"every group was abandoned, the last one since {next(reversed(lost.values()))}")
        return _sound([trajectory for group in groups for trajectory in done.get(group.id, ())])


def _groups(episodes: Sequence[Episode], sampling: Sampling, phase: str) -> list[Group]:
    """`episodes` come group by group."""
    return [
        Group(id, members[0].question, tuple(episode.member for episode in members), phase, sampling)
        for id, members in ((id, list(of)) for id, of in groupby(episodes, key=lambda episode: episode.group))
    ]


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

    def load(self, version: TeamVersion) -> None:
        self.collector.engine.version = version.name
