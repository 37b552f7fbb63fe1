"""Episodes that RL trained on, token by token: advantage, ratio and entropy of each, for the report to lay over the transcript.

Kept of a few episodes at the steps that are evaluated, in one file of bounded size.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecast.evaluation.tasks import Task
from rolecast.evaluation.trace import trace
from rolecast.store.artifact import write_text
from rolecast.types import Action, Trajectory, Unit

if TYPE_CHECKING:  # a report is written without torch
    from rolecast.learner.look import TokenNumbers

FILE = "looked.json"
STEPS = 16  # that are kept: the first one and the newest
TOKENS = 4096  # sampled tokens that are kept of a step
DIGITS = 4


def chosen(trajectories: Sequence[Trajectory], units: Sequence[Unit], episodes: int) -> list[Trajectory]:
    """`episodes` of the first question whose rewards differ, as far as `TOKENS` go: the best and the worst, those next to them, and so on; none
    where no rewards do."""
    if not episodes:  # of most steps none is shown
        return []
    rewards: dict[str, set[float]] = defaultdict(set)
    for unit in units:
        rewards[unit.baseline].add(unit.reward)
    of_action = {action: unit.reward for unit in units for action in unit.actions}
    trained = {action for unit in units if len(rewards[unit.baseline]) > 1 for action in unit.actions}
    learned = [t for t in trajectories if any(action.id in trained for action in t.actions)]
    found: list[Trajectory] = []
    spent = 0
    earned = {t.id: sum(of_action.get(action.id, 0.0) for action in t.actions) for t in learned}
    order = sorted((t for t in learned if t.group == learned[0].group), key=lambda t: (-earned[t.id], t.member))
    ends = [order[place // 2] if place % 2 == 0 else order[-1 - place // 2] for place in range(len(order))]
    for t in ends:
        spent += sum(len(action.ids) for action in t.actions)
        if len(found) == episodes or spent > TOKENS:
            break
        found.append(t)
    return found


def keep(
    folder: Path, step: int, trajectories: Sequence[Trajectory], numbers: Mapping[str, TokenNumbers], decode: Callable[[Sequence[int]], str],
    task: Task,
) -> None:  # fmt: skip
    """Adds the step's episodes to the stage's file, in the place of what it held of this step and later ones: a run that went on from a
    checkpoint has others. `decode`: ids to text."""
    told = {action.id: columns_of(action, numbers[action.id], decode) for t in trajectories for action in t.actions if action.id in numbers}
    if not told:
        return
    before = [kept for kept in read_looked(folder) if kept["step"] < step]
    steps = sorted({kept["step"] for kept in before})
    left = {*steps[:1], *steps[1:][-(STEPS - 2) :]}
    now = [{**trace(t, task, told), "step": step} for t in trajectories]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FILE, json.dumps([*(kept for kept in before if kept["step"] in left), *now]))


def read_looked(folder: Path) -> list[dict[str, Any]]:
    """Traces, in the order of their steps; none of a stage that kept none."""
    file = folder / FILE
    kept: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    return kept


def columns_of(action: Action, numbers: TokenNumbers, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """What a trace shows of an action's tokens: their texts and their numbers."""
    columns = {name: [round(value, DIGITS) for value in getattr(numbers, name)] for name in ("advantage", "ratio", "entropy")}
    return {"pieces": pieces_of(action.ids, decode), **columns}


def pieces_of(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """What each token adds to the text before it. Bytes that make no character yet come with the token that completes it."""
    pieces: list[str] = []
    start = shown = 0  # a token is decoded behind the one before it: some write a space only there
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])
        if text.endswith("\ufffd") and end < len(ids):
            pieces.append("")
            continue
        pieces.append(text[len(decode(ids[start:shown])) :])
        start, shown = shown, end
    return pieces
