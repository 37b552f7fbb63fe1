"""A method's schedule: its stages by name, in the order in which a run goes through them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from rolecast.errors import InputError
from rolecast.types import Stage

Schedule = tuple[Stage, ...]


def find(schedule: Sequence[Stage], name: str) -> Stage:
    """Raises InputError for a stage that the schedule does not have."""
    for stage in schedule:
        if stage.name == name:
            return stage
    there = f"it has {', '.join(stage.name for stage in schedule)}" if schedule else "it is not trained"
    raise InputError(f"no stage {name!r} in the method's schedule; {there}")


def last(schedule: Sequence[Stage]) -> str:
    if not schedule:
        raise InputError("the method is not trained, so there is no stage's model; see `rolecast methods`")
    return schedule[-1].name


def check(schedule: Sequence[Stage]) -> None:
    """Raises ValueError for a schedule that no run could go through."""
    seen: set[str] = set()
    for stage in schedule:
        if stage.name in seen:
            raise ValueError(f"stage {stage.name!r} is there twice")
        if stage.start and stage.start not in seen:
            raise ValueError(f"stage {stage.name!r} starts from {stage.start!r}, which does not come before it")
        if stray := set(stage.merges) - set(stage.trained):
            raise ValueError(f"stage {stage.name!r} merges {sorted(stray)[0]!r}, which it does not train")
        if both := set(stage.trained) & set(stage.critics):
            raise ValueError(f"stage {stage.name!r} has {sorted(both)[0]!r} as a policy and as a critic")
        seen.add(stage.name)


def digest(schedule: Sequence[Stage]) -> str:
    """Tells the shape of a schedule: which stages there are, of which kind, and what each starts from."""
    shape = [(stage.name, stage.kind, stage.start) for stage in schedule]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]
