"""What a coordinator and its workers speak of: groups, leases, versions, and why one of them says no.

Plain records. `coordinator` decides on them, `rollout` works by them, `wire.coordinator` carries them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rolecast.errors import RolecastError
from rolecast.ports import Sampling
from rolecast.types import Question

Blame = Literal["group", "version", "nobody"]  # for a lease that is given back: "nobody" where the worker's surroundings failed it


class Refused(RolecastError):
    """An offer or a submission that contradicts what the run is: over HTTP, 409."""


class Malformed(Refused):
    """A submission that no worker of the run's could have made: over HTTP, 400. Its lease stays as it was."""


class Stopped(RolecastError):
    """No healthy worker is left for a version that several workers could not load."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """What two sides must agree on before one samples for the other. A worker learns the last two from the first version."""

    package: str  # version of rolecast, and of the plugin that the method comes from
    config: str  # fingerprint of the run's config
    index: str  # what is searched
    judge: str  # who scores, with which prompts
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
class Ticket:
    """What speaks for a lease. The secret is drawn anew for each: only the worker that was given the lease has it."""

    id: str
    attempt: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Lease(Ticket):
    run: str
    group: Group
    version: TeamVersion
    seconds: float  # until it expires, unless a heartbeat extends it
