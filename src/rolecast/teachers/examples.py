"""Supervised rows from scripted teachers on throw-away worlds, or on a data set's own gold chains.

Rows come in blocks: a block is a pure function of (seed, number), so training can resume anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from rolecast.methods.base import Method
from rolecast.rollout.env import EpisodeEnd
from rolecast.rollout.render import Renderer
from rolecast.seeding import stream
from rolecast.teachers.base import Teacher, TeacherEnv, TeacherVoice
from rolecast.types import Action, Example, Thread, Trajectory
from rolecast.world.throwaway import COUNTERFACTUAL, ThrowawayRetriever, draw_throwaway


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
    world: str = COUNTERFACTUAL,
) -> list[Example]:  # fmt: skip
    """`count` turns of the teacher, roles in the shares of `mix` (empty: as they come)."""
    rows: list[Example] = []
    wanted = {role: round(share * count) for role, share in mix.items()}
    if wanted:
        wanted[next(iter(wanted))] += count - sum(wanted.values())
    number = block << 20  # episodes are numbered within their block
    while len(rows) < count:
        for thread in throwaway_episode(method, teacher, renderer, seed, number, max_context, world).threads:
            if len(rows) < count and (not wanted or wanted.get(thread.role, 0) > 0):
                rows.append(example_of(thread))
                if wanted:
                    wanted[thread.role] -= 1
        number += 1
    return rows


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
