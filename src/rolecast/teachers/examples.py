"""Supervised rows from scripted teachers on throw-away worlds, or on a data set's own gold chains.

Rows come in blocks: a block is a pure function of (seed, number), so training can resume anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from inspect import isabstract

from rolecast.errors import InputError
from rolecast.methods.base import Method
from rolecast.rollout.env import EpisodeEnd
from rolecast.rollout.render import Renderer
from rolecast.seeding import stream
from rolecast.teachers.base import Teacher, TeacherEnv, TeacherErrors, TeacherVoice
from rolecast.types import Action, Example, Slot, Thread, Trajectory
from rolecast.world.throwaway import COUNTERFACTUAL, ThrowawayRetriever, draw_throwaway

PATIENCE = 1000  # episodes in a row without a turn that is wanted


def throwaway_episode(
    method: Method, teacher: Teacher, renderer: Renderer, seed: int, number: int, max_context: int, world: str = COUNTERFACTUAL
) -> Trajectory:
    """The teacher's episode on a world of its own. `world`: the kind of the run's own that it is like."""
    rng = stream(seed, "throwaway", number)
    drawn = draw_throwaway(rng, world)
    trajectory = Trajectory(f"throwaway-{number}", drawn.question, "", 0, method.name, seed)
    phase = method.taught[number % len(method.taught)]
    env = TeacherEnv(TeacherVoice(), ThrowawayRetriever(drawn), renderer, trajectory, max_context, phase=phase, teacher=teacher, rng=rng)
    try:
        # Nothing in a teacher's episode waits, so the coroutine runs to its end without an event loop.
        trajectory.answer = _run(method.rollout(drawn.question, env))
    except EpisodeEnd as end:
        trajectory.status = end.status
    return trajectory


def draw_turns(
    method: Method, teacher: Teacher, renderer: Renderer, seed: int, block: int, count: int, mix: Mapping[str, float], max_context: int,
    world: str = COUNTERFACTUAL, slots: Collection[Slot] | None = None, faultless: float = 0.0,
) -> list[Example]:  # fmt: skip
    """`count` turns of the teacher in roles that speak with `slots` (by default all), in the shares of `mix` (empty: as they come).

    `faultless`: share of the episodes that the method's teacher without errors plays instead.
    `InputError` for a teacher of another method, one that says what this one cannot read, or one that never speaks in a role of the mix.
    """
    slots = {role.slot for role in method.roles.values()} if slots is None else slots
    _require_own(method, slots)
    rows: list[Example] = []
    wanted = {role: round(share * count) for role, share in mix.items() if share}
    if wanted:
        wanted[next(iter(wanted))] += count - sum(wanted.values())
    flawless = method.teacher(TeacherErrors()) if faultless else teacher
    number = found_in = block << 20  # episodes are numbered within their block; the last one that a row was taken from
    while len(rows) < count:
        _require_heard(method, teacher, number - found_in, wanted)
        speaks = flawless if is_faultless(seed, number, faultless) else teacher
        for thread in throwaway_episode(method, speaks, renderer, seed, number, max_context, world).threads:
            if thread.slot not in slots:
                continue
            _require_read(method, teacher, thread)
            if len(rows) < count and (not wanted or wanted.get(thread.role, 0) > 0):
                rows.append(example_of(thread))
                found_in = number
                if wanted:
                    wanted[thread.role] -= 1
        number += 1
    return rows


def is_faultless(seed: int, number: int, share: float) -> bool:
    """Whether the episode is among the `share` without errors. From a stream of its own: worlds and errors of the others stay as they are."""
    return share > 0 and stream(seed, "faultless", number).random() < share


def _require_own(method: Method, slots: Collection[Slot]) -> None:
    """A method that inherits its teacher may have roles that the teacher does not know: it would speak for them as for others."""
    owner = next(kind for kind in type(method).__mro__ if issubclass(kind, Method) and "teacher" in vars(kind))
    if owner is type(method) or isabstract(owner):
        return
    known = owner(owner.config_type(name=owner.name)).roles
    if strange := [role.name for role in method.roles.values() if role.slot in slots and role.name not in known]:
        raise InputError(
            f"method {method.name} has the teacher of {owner.name}, which does not know its role {strange[0]}; write {type(method).__name__}.teacher"
        )


def _require_read(method: Method, teacher: Teacher, thread: Thread) -> None:
    """What a method cannot read would be imitated without a word."""
    for action in thread.actions:
        if not action.valid:
            raise InputError(
                f"method {method.name}: as {thread.role} its teacher {type(teacher).__name__} says {action.text[:80]!r}, which the method cannot "
                f"read; let reply() speak in the form of {thread.role}"
            )


def _require_heard(method: Method, teacher: Teacher, silent: int, wanted: Mapping[str, int]) -> None:
    """More episodes would be drawn for ever. `silent`: those since the last one that a row was taken from."""
    if silent > PATIENCE:
        mute = ", ".join(role for role, left in wanted.items() if left > 0) or "a role that is trained"
        raise InputError(
            f"method {method.name}: in {PATIENCE} episodes in a row its teacher {type(teacher).__name__} never spoke as {mute}; "
            "give roles that speak a share in the stage's mix, or the teacher what it has to say"
        )


def deal(rows: Sequence[Example], batch: int, rng: random.Random) -> list[list[Example]]:
    """The rows in batches, in random order; rows of similar length share a batch, so that little of it is padding."""
    shuffled = list(rows)
    rng.shuffle(shuffled)
    window = 8 * batch
    dealt = []
    for start in range(0, len(shuffled), window):
        part = sorted(shuffled[start : start + window], key=lambda row: len(row.ids))
        dealt += [part[i : i + batch] for i in range(0, len(part), batch)]
    rng.shuffle(dealt)
    return dealt


def example_of(thread: Thread) -> Example:
    """The whole thread as one row; what the role said is trained, what it read is not."""
    trained = tuple(isinstance(turn, Action) for turn in thread.turns for _ in turn.ids)
    return Example(thread.ids, trained, tag=thread.role)


def _run(coroutine: object) -> str | None:
    try:
        coroutine.send(None)  # type: ignore[attr-defined]
    except StopIteration as stop:
        answer: str | None = stop.value
        return answer
    raise RuntimeError("a teacher's episode tried to wait")
