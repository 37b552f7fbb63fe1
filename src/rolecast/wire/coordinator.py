"""The coordinator's wire: JSON, compressed where a group's trajectories travel.

Records are the dataclasses of `rolecast.types`, validated on arrival. What an action's state was stays with the worker: it
has scored the episode, and credit needs named rewards only.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Base64Bytes, BaseModel, ConfigDict, TypeAdapter

from rolecast.coordinator.leases import Group, Handshake, Lease, TeamVersion
from rolecast.types import Trajectory

_TRAJECTORIES = TypeAdapter(list[Trajectory])


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunInfo(Message):
    """What a worker needs to become one: the config as JSON, and the version to load first."""

    run: str
    attempt: int
    config: str
    stage: str
    store: str
    version: TeamVersion | None


class Offer(Message):
    worker: str
    handshake: Handshake
    capacity: int


class Leases(Message):
    leases: list[Lease]


class Heartbeat(Message):
    leases: list[str]


class Failure(Message):
    lease: str
    reason: str
    version: str | None = None


class Accepted(Message):
    accepted: bool  # False: the group was taken before, nothing is lost


class Published(Message):
    version: TeamVersion


class Work(Message):
    groups: list[Group]


class Received(Message):
    groups: list[str]
    wait: float = 0.0  # seconds to wait for something to tell


class Collected(Message):
    """Groups completed and abandoned that the learner has not acknowledged. `done` is packed and in base64."""

    done: Base64Bytes
    abandoned: dict[str, str]
    counts: dict[str, int]


def pack(trajectories: Sequence[Trajectory]) -> bytes:
    return gzip.compress(_TRAJECTORIES.dump_json([replace(t, states={}) for t in trajectories]), compresslevel=1, mtime=0)


def unpack(data: bytes) -> list[Trajectory]:
    """Raises ValueError (pydantic's or gzip's) on what is no list of trajectories."""
    try:
        return _TRAJECTORIES.validate_json(gzip.decompress(data))
    except (OSError, EOFError) as error:
        raise ValueError(f"not gzip: {error}") from error
