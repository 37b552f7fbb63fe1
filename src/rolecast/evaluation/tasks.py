"""What an episode is measured by: the task of a stage says which scores it has, and which of them models are selected on.

`qa` compares answers with gold answers. `reward:NAME` takes the method's own reward of that name: a rubric's score of a long
report, or what a stage that trains a planner alone rewards it with. Released code may count less than we do: `qa+answered` leaves out
episodes without an answer, `qa+spans` leaves yes and no out of F1, `qa+answered+spans` does both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rolecast.errors import InputError
from rolecast.rewards.text import SPECIAL, cover_exact_match, exact_match, normalize, token_f1
from rolecast.types import Trajectory

Scores = Mapping[str, float | None]  # of one episode; None is unscored


@dataclass(frozen=True, slots=True)
class Task:
    """`headline`: the score that the best model has the most of. It lies in [0, 1] and is one of `scores`. `others`: headlines of the
    further tasks that this one stands for (`together`).
    """

    name: str
    headline: str
    scores: Callable[[Trajectory], Scores]
    others: tuple[str, ...] = ()


def find(name: str) -> Task:
    """Raises InputError for what is no task."""
    base, *limits = name.split("+")
    if base == QA.name and set(limits) <= _LIMITS.keys():
        return Task(name, QA.headline, _limited(limits)) if limits else QA
    kind, _, reward = name.partition(":")
    if kind == "reward" and reward:
        return Task(name, reward, lambda t: {reward: reward_of(t, reward)})
    raise InputError(f"no task {name!r}; there are qa, qa+answered, qa+spans, qa+answered+spans and reward:NAME")


def together(names: Sequence[str]) -> Task:
    """Several tasks as one, which has all of their scores and the first one's headline."""
    first, *rest = found = [find(name) for name in names]
    others = tuple(task.headline for task in rest)
    return Task("+".join(names), first.headline, lambda t: {name: s for task in found for name, s in task.scores(t).items()}, others)


def means(task: Task, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Each score's mean over the episodes that have it; a score that none has is left out. Of no episodes there is none."""
    return means_of([task.scores(t) for t in trajectories])


def means_of(found: Sequence[Scores]) -> dict[str, float]:
    """As `means`, of scores that were taken before."""
    names = dict.fromkeys(name for scores in found for name in scores)
    columns = {name: [value for scores in found if (value := scores.get(name)) is not None] for name in names}
    return {name: float(np.mean(column)) for name, column in columns.items() if column}


def right_by(t: Trajectory, task: Task) -> bool:
    """Whether an episode's answer is right: equal to a gold one, or, of a task that does not ask for that, with all of its score."""
    scores = task.scores(t)
    return (scores.get("em", scores[task.headline]) or 0.0) >= 1


def _answers(t: Trajectory) -> Scores:
    """An episode without an answer scores 0. A question without gold answers, which has a rubric instead, scores nothing."""
    golds = t.question.gold.answers
    if not golds:
        return dict.fromkeys(("em", "f1", "cem"))
    return {"em": exact_match(t.answer, golds), "f1": token_f1(t.answer, golds), "cem": cover_exact_match(t.answer, golds)}


def _limited(limits: Sequence[str]) -> Callable[[Trajectory], Scores]:
    def scores(t: Trajectory) -> Scores:
        found = _answers(t)
        for limit in limits:
            found = _LIMITS[limit](t, found)
        return found

    return scores


def _answered(t: Trajectory, scores: Scores) -> Scores:
    return scores if t.answer is not None else dict.fromkeys(scores)


def _spans(t: Trajectory, scores: Scores) -> Scores:
    """M-ASK's code leaves out what says yes, no or noanswer where every gold does; another answer to such a question counts as 0."""
    said = [t.answer, *t.question.gold.answers]
    return {**scores, "f1": None} if all(text is not None and normalize(text) in SPECIAL for text in said) else scores


def reward_of(t: Trajectory, name: str) -> float | None:
    """The mean of the episode's rewards of that name, over its actions too."""
    earned = [reward.value for reward in t.rewards if reward.name == name and reward.value is not None]
    return float(np.mean(earned)) if earned else None


_LIMITS: Mapping[str, Callable[[Trajectory, Scores], Scores]] = {"answered": _answered, "spans": _spans}
QA = Task("qa", "em", _answers)
