"""The states of a training job, the transitions between them, and how long a job may stay in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from rolecast.errors import RolecastError
from rolecast.launching.spec import Deadlines


class State(StrEnum):
    QUEUED = "queued"  # suspended: a queue has not admitted it
    PENDING = "pending"  # admitted, but not all of its pods run
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


# A watcher samples: it may miss states, and a job may go back when Kueue preempts it or a node is lost. What ended stays ended.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.PENDING, State.RUNNING, State.SUCCEEDED, State.FAILED}),
    State.PENDING: frozenset({State.QUEUED, State.RUNNING, State.SUCCEEDED, State.FAILED}),
    State.RUNNING: frozenset({State.QUEUED, State.PENDING, State.SUCCEEDED, State.FAILED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class JobView:
    """What the API server says at one moment. `reason` is for people: why a job waits or how it ended."""

    state: State
    reason: str = ""


class IllegalTransition(RolecastError):
    """A job was seen in a state that cannot follow the one before."""


@dataclass(slots=True)
class Lifecycle:
    """The state of one job as a watcher saw it. `clock`: seconds, monotonic."""

    clock: Callable[[], float]
    current: JobView | None = None
    since: float = 0.0
    seconds: dict[State, float] = field(default_factory=dict)

    def observe(self, seen: JobView) -> bool:
        """True if state or reason are new. The first observation may be any state: the job may have been adopted."""
        before, now = self.current, self.clock()
        if before is None or seen.state is not before.state:
            if before is not None:
                if seen.state not in TRANSITIONS[before.state]:
                    raise IllegalTransition(f"a job that had {before.state} was seen {seen.state}; look for a second job of the same name")
                self.seconds[before.state] = self.seconds.get(before.state, 0.0) + now - self.since
            self.since = now
        self.current = seen
        return seen != before

    @property
    def ended(self) -> bool:
        return self.current is not None and not TRANSITIONS[self.current.state]

    def remaining(self, deadlines: Deadlines) -> float:
        """Seconds until the deadline of the current state; infinite once it ended."""
        if self.current is None or self.ended:
            return float("inf")
        return float(getattr(deadlines, self.current.state.value)) - (self.clock() - self.since)
