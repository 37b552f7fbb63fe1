"""The coordinator's wire: JSON, compressed where a group's trajectories travel.

Records are the dataclasses of `rolecast.types`, validated on arrival. What an action's state was stays with the worker: it
has scored the episode, and credit needs named rewards only.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, TypeAdapter

from rolecast.errors import RolecastError
from rolecast.leasing import Blame, Group, Handshake, Lease, TeamVersion, Ticket
from rolecast.types import Trajectory

MOST_INFLATED = 64 * 2**20  # bytes of one group's trajectories as JSON; some 2 million tokens with their log-probs
SECRET = "x-lease-secret"  # the header that a submission shows its lease's secret in: addresses end in logs
_TRAJECTORIES = TypeAdapter(list[Trajectory])
Name = Annotated[str, Field(min_length=1, max_length=200)]


class TooLarge(RolecastError):
    """What was sent is larger, unpacked, than anything that is taken: over HTTP, 413."""


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Attempt(Message):
    """What anybody may know: enough for a worker with the release's key to derive its token."""

    run: str
    attempt: int
    session: str  # another one whenever a coordinator starts: runs may have one name, and a run may be made anew under its name


class Load(Message):
    """What workers choose by, among several coordinators."""

    workers: int = Field(ge=0)  # heard of lately
    waiting: int = Field(ge=0)  # groups that no worker holds


class RunInfo(Message):
    """What a worker needs to become one: the config as JSON, and the version to load first."""

    run: str
    attempt: int
    config: str
    stage: str
    store: str
    version: TeamVersion | None


class Join(Message):
    name: Name  # as the worker's operator knows it


class Badge(Message):
    """The name that the coordinator knows the worker by, and what proves it."""

    worker: Name
    proof: Name


class Offer(Message):
    badge: Badge
    handshake: Handshake
    capacity: int = Field(ge=0)


class Leases(Message):
    leases: list[Lease]


class Heartbeat(Message):
    leases: list[Ticket]


class Held(Message):
    leases: list[str]  # ids of those that are not lost


class Dropped(Message):
    leases: list[str]  # ids of those that nobody needs any more


class Failure(Message):
    lease: Ticket
    reason: str = Field(max_length=1000)
    blame: Blame = "group"


class Accepted(Message):
    accepted: bool  # False: the group was taken before, nothing is lost


class Published(Message):
    version: TeamVersion


class Work(Message):
    groups: list[Group]


class Received(Message):
    groups: list[str]


class Counted(Message):
    counts: dict[str, int]


class Spent(Message):
    """What dropped leases sampled: `done` is packed and in base64, `parts` says how many trajectories of it are whose. `untold`: leases whose
    workers have not said yet."""

    done: Base64Bytes
    parts: dict[str, int]
    untold: int


class Collected(Counted):
    """Groups completed and abandoned that the learner has not acknowledged. `done` is packed and in base64."""

    done: Base64Bytes
    abandoned: dict[str, str]


def pack(trajectories: Sequence[Trajectory]) -> bytes:
    return gzip.compress(_TRAJECTORIES.dump_json([replace(t, states={}) for t in trajectories]), compresslevel=1, mtime=0)


def unpack(data: bytes, most: int | None = None) -> list[Trajectory]:
    """Raises ValueError (or pydantic's) on what is no list of trajectories, `TooLarge` on one of more than `most` bytes of JSON."""
    return _TRAJECTORIES.validate_json(_inflated(data, most))


def _inflated(data: bytes, most: int | None) -> bytes:
    """At most `most` bytes are ever made: a megabyte of gzip may stand for a gigabyte."""
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # gzip's own frame
    try:
        text = stream.decompress(data, 0 if most is None else most + 1)
    except zlib.error as error:
        raise ValueError(f"not gzip: {error}") from None
    if most is not None and len(text) > most:
        raise TooLarge(f"the trajectories are more than {most} bytes of JSON; lease fewer rollouts at once (the stage's group or samples)")
    if not stream.eof or stream.unused_data:
        raise ValueError("not gzip: it ends early, or something comes after it")
    return text
