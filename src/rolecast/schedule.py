"""A method's schedule: its stages by name, in the order in which a run goes through them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

from rolecast.errors import InputError
from rolecast.types import TRAIN, Role, Slot, Stage, endpoint_of

Schedule = tuple[Stage, ...]
# Of a stage: its folder in a run, a part of job names, a label's value, a step of the pipeline.
NAME = re.compile(r"[a-z]([a-z0-9_]{0,22}[a-z0-9])?")
# What else lies in a run's folder or under its address.
TAKEN = ("world", "index", "base", "eval", "versions", "attempts", "learner", "probe", "slots")


def find(schedule: Sequence[Stage], name: str) -> Stage:
    """Raises InputError for a stage that the schedule does not have."""
    for stage in schedule:
        if stage.name == name:
            return stage
    there = f"it has {', '.join(stage.name for stage in schedule)}" if schedule else "it is not trained"
    raise InputError(f"no stage {name!r} in the method's schedule; {there}")


def trained(schedule: Sequence[Stage]) -> Schedule:
    """The stages that end with a model."""
    return tuple(stage for stage in schedule if stage.trains)


def find_trained(schedule: Sequence[Stage], name: str) -> Stage:
    """Raises InputError for a stage that the schedule does not have, or that has no model."""
    stage = find(schedule, name)
    if not stage.trains:
        there = ", ".join(stage.name for stage in trained(schedule)) or "none"
        raise InputError(f"stage {name} prepares questions and has no model; stages with one: {there}")
    return stage


def last(schedule: Sequence[Stage]) -> str:
    """The last stage that ends with a model."""
    if not trained(schedule):
        raise InputError("the method is not trained, so there is no stage's model; see `rolecast methods`")
    return trained(schedule)[-1].name


def check(schedule: Sequence[Stage], roles: Mapping[str, Role] | None = None) -> None:
    """Raises ValueError for a schedule that no run could go through. `roles`: the method's, where they are known."""
    beside: dict[str, frozenset[Slot]] = {"": frozenset()}  # what each stage's model has beside its base
    prepared: dict[str, Stage] = {}  # rollout stages so far
    for stage in schedule:
        _check_name(stage.name)
        if stage.name in beside or stage.name in prepared:
            raise ValueError(f"stage {stage.name!r} is there twice")
        if stage.start in prepared:
            raise ValueError(
                f"stage {stage.name!r} starts from {stage.start!r}, a rollout stage, which has no model of its own: start from "
                f"{prepared[stage.start].start!r}, which it plays, and name {stage.start!r} in data"
            )
        if stage.start not in beside:
            raise ValueError(f"stage {stage.name!r} starts from {stage.start!r}, which does not come before it")
        _check_data(stage, prepared)
        _check_objectives(stage)
        if roles is not None:
            _check_roles(stage, roles)
        if not stage.trains:
            _check_trains_nothing(stage)
            prepared[stage.name] = stage
            continue
        if stray := set(stage.merges) - set(stage.trained):
            raise ValueError(f"stage {stage.name!r} merges {sorted(stray)[0]!r}, which it does not train")
        beside[stage.name] = (beside[stage.start] | set(stage.trained)) - set(stage.merges)
        if len(stage.merges) > 1 or (stage.merges and beside[stage.name]):
            others = sorted({*beside[stage.name], *stage.merges[1:]})
            raise ValueError(
                f"stage {stage.name!r} merges {stage.merges[0]!r} into the base that {others[0]!r} was trained over, which would change it; "
                "merge a slot where it is the only one"
            )


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"stage {name!r} is no name for a folder and a label: take at most 24 of a-z, 0-9 and _, a letter first and no _ last"
        )
    if name in TAKEN:
        raise ValueError(f"stage {name!r} has the name of something else in a run's folder; the names {', '.join(TAKEN)} are taken")


def _check_data(stage: Stage, prepared: Mapping[str, Stage]) -> None:
    if stage.data == TRAIN:
        return
    if stage.data not in prepared:
        there = ", ".join(map(repr, (TRAIN, *prepared)))
        raise ValueError(
            f"stage {stage.name!r} has its questions from {stage.data!r}, which is no rollout stage before it; there are {there}"
        )


def _check_trains_nothing(stage: Stage) -> None:
    if stage.name == TRAIN:
        raise ValueError(f"stage {stage.name!r} prepares questions, and {TRAIN!r} in data are the run's own: give it another name")
    if stage.objectives or stage.merges:
        raise ValueError(f"stage {stage.name!r} is of kind 'rollout', which trains nothing: leave out its objectives and merges")


def _check_objectives(stage: Stage) -> None:
    names = [objective.name for objective in stage.objectives]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"stage {stage.name!r} has two objectives {twice[0]!r}")
    if both := set(stage.trained) & set(stage.critics):
        raise ValueError(f"stage {stage.name!r} has {sorted(both)[0]!r} as a policy and as a critic")
    if outside := [slot for slot in (*stage.trained, *stage.critics) if endpoint_of(slot) is not None]:
        raise ValueError(f"stage {stage.name!r} trains {outside[0]!r}, which is no weights of the team: nobody can train an endpoint")
    for slot in (*stage.trained, *stage.critics):
        rates = {objective.rates[slot] for objective in stage.objectives if slot in objective.rates}
        if len(rates) > 1:
            raise ValueError(f"stage {stage.name!r} trains {slot!r} at rates {', '.join(map(str, sorted(rates)))}: a slot has one")


def _check_roles(stage: Stage, roles: Mapping[str, Role]) -> None:
    if unknown := sorted(set(stage.slots) - set(roles)):
        raise ValueError(f"stage {stage.name!r} gives a slot to {unknown[0]!r}, which is no role; there are {', '.join(roles)}")
    if unknown := sorted(set(stage.silent) - set(roles)):
        raise ValueError(f"stage {stage.name!r} does without {unknown[0]!r}, which is no role; there are {', '.join(roles)}")
    spoken = {stage.slots.get(name, role.slot) for name, role in roles.items() if name not in stage.silent}
    if mute := sorted(set(stage.trained) - spoken):
        raise ValueError(f"stage {stage.name!r} trains {mute[0]!r}, which no role speaks with in it")


def keys_of(stage: Stage, metric: str) -> dict[str, str]:
    """The key of an update's metric for each objective of the stage: under the objective's name where there are several."""
    names = [objective.name for objective in stage.objectives]
    return {name: f"{name}/{metric}" if len(names) > 1 else metric for name in names}


def digest(schedule: Sequence[Stage]) -> str:
    """Tells the shape of a schedule: which stages there are, of which kind, and what each starts from."""
    shape = [(stage.name, stage.kind, stage.start) for stage in schedule]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:12]
