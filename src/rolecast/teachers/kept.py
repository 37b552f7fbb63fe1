"""Supervised rows from episodes that were played before, by whoever spoke in them: a rollout stage keeps their turns, SFT learns them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

from rolecast.errors import InputError
from rolecast.seeding import stream
from rolecast.teachers.examples import example_of
from rolecast.types import Example, Question, Trajectory

TURNS = "turns"  # the key of a prepared question's `given`


def in_form(t: Trajectory) -> bool:
    """Whether it is a whole episode in which every reply could be read."""
    return t.status == "ok" and all(action.valid for action in t.actions)


def kept_turns(t: Trajectory) -> dict[str, Any] | None:
    """What `Method.prepare` keeps for SFT: the threads of a whole episode in which every reply could be read; None of any other."""
    if not in_form(t):
        return None
    rows = [(thread.role, example_of(thread)) for thread in t.threads if not thread.probe]
    return {TURNS: [{"role": role, "ids": list(row.ids), "trained": [int(flag) for flag in row.trained]} for role, row in rows]}


def read_turns(questions: Sequence[Question], stage: str) -> list[Example]:
    """The rows that a rollout stage kept. InputError where it kept something else."""
    rows = [_row(turn) for question in questions for turn in question.given.get(TURNS, ())]
    if not rows:
        raise InputError(f"stage {stage} kept no turns to learn from; let its method's prepare give teachers.kept.kept_turns")
    return rows


def _row(turn: Mapping[str, Any]) -> Example:
    return Example(tuple(turn["ids"]), tuple(map(bool, turn["trained"])), tag=turn["role"])


def draw_kept(rows: Sequence[Example], seed: int, stage: str, block: int, size: int) -> list[Example]:
    """Rows number `block` · `size` and on, of passes over all rows, each in an order of its own."""
    return list(islice(_passes(rows, seed, stage), block * size, (block + 1) * size))


def _passes(rows: Sequence[Example], seed: int, stage: str) -> Iterator[Example]:
    for number in count():
        yield from stream(seed, "kept", stage, number).sample(rows, len(rows))
