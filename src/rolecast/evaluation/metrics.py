"""What an evaluation says of a set of episodes: the task's scores with bootstrap intervals, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rolecast.errors import RolecastError
from rolecast.evaluation.tasks import QA, Task, means
from rolecast.types import Trajectory

TOLERATED = 0.1  # share of the asked episodes that may be missing or failed


def shortfall(asked: int, done: Sequence[Trajectory], what: str) -> dict[str, float]:
    """How many of the `asked` episodes are missing, and how many failed of something else than the team.

    RolecastError if they are more than TOLERATED together: a score without them, or with zeros for them, says little. One alone
    is tolerated also of fewer than ten, unless it is all there is.
    """
    faults = [t.fault for t in done if t.status == "error"]
    missing = max(0, asked - len(done))
    lost = missing + len(faults)
    if lost > TOLERATED * asked and (lost > 1 or lost == asked):
        raise RolecastError(
            f"{what}: of {asked} episodes {missing} are missing and {len(faults)} failed; at most {TOLERATED:.0%} may, or one. "
            f"See the log, mend what failed, run again. The last fault: {faults[-1] if faults else 'none, groups were abandoned'}"
        )
    return {"missing": float(missing), "errors": float(len(faults))}


def summarize(trajectories: Sequence[Trajectory], seed: int, bootstrap: int, task: Task = QA) -> dict[str, Any]:
    """Totals, by hops and by type. Every question counts, but for those that the task cannot score: they are told apart."""
    return {
        "task": task.name,
        "headline": task.headline,
        **_scores(trajectories, seed, bootstrap, task),
        **({"others": {name: _led(trajectories, seed, bootstrap, task, name) for name in task.others}} if task.others else {}),
        "by_hops": _split(trajectories, lambda t: str(t.question.hops), seed, bootstrap, task),
        "by_type": _split(trajectories, lambda t: t.question.type or "unknown", seed, bootstrap, task),
        "status": {status: sum(t.status == status for t in trajectories) for status in sorted({t.status for t in trajectories})},
        "valid": valid_share(trajectories),
        "gold_recall": gold_recall(trajectories),
        "tokens_per_question": float(np.mean([_said(t) for t in trajectories])),
        "searches_per_question": float(np.mean([t.searches for t in trajectories])),
    }


def _said(t: Trajectory) -> int:
    """Tokens that the answer took; a probe is no part of it."""
    return sum(len(action.ids) for thread in t.threads if not thread.probe for action in thread.actions)


def valid_share(trajectories: Sequence[Trajectory]) -> float:
    """Of all actions; 0 where there is none."""
    valid = [action.valid for t in trajectories for action in t.actions]
    return float(np.mean(valid)) if valid else 0.0


def gold_recall(trajectories: Sequence[Trajectory]) -> float | None:
    """Share of gold passages that were retrieved at any turn, over questions that have some."""
    shares = [
        len(set(t.question.gold.passages) & set(t.retrieved)) / len(set(t.question.gold.passages))
        for t in trajectories
        if t.question.gold.passages
    ]
    return float(np.mean(shares)) if shares else None


def _split(
    trajectories: Sequence[Trajectory], key: Callable[[Trajectory], str], seed: int, bootstrap: int, task: Task
) -> dict[str, Any]:  # fmt: skip
    parts = sorted({key(t) for t in trajectories})
    return {part: _scores([t for t in trajectories if key(t) == part], seed, bootstrap, task) for part in parts}


def _scores(trajectories: Sequence[Trajectory], seed: int, bootstrap: int, task: Task) -> dict[str, Any]:
    """The task's scores, with the interval of its headline over the `n` episodes that have one."""
    return {task.headline: None, **means(task, trajectories), **_led(trajectories, seed, bootstrap, task, task.headline)}


def _led(trajectories: Sequence[Trajectory], seed: int, bootstrap: int, task: Task, name: str) -> dict[str, Any]:
    """Over how many episodes the score's mean is taken, its interval, and how many have no such score."""
    led = [value for t in trajectories if (value := task.scores(t)[name]) is not None]
    unscored = {"unscored": len(trajectories) - len(led)} if len(led) < len(trajectories) else {}
    return {"n": len(led), "ci95": list(interval(np.array(led), seed, bootstrap)) if led else None, **unscored}


def interval(scores: np.ndarray, seed: int, samples: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean."""
    generator = np.random.Generator(np.random.PCG64(seed))
    means = scores[generator.integers(0, len(scores), (samples, len(scores)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
