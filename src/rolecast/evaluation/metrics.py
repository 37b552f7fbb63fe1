"""What an evaluation says of a set of episodes: EM, F1, CEM with bootstrap intervals, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rolecast.errors import RolecastError
from rolecast.rewards.text import cover_exact_match, exact_match, token_f1
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


def summarize(trajectories: Sequence[Trajectory], seed: int, bootstrap: int) -> dict[str, Any]:
    """Totals, by hops and by type. Every question counts; an episode without an answer scores 0."""
    return {
        **_scores(trajectories, seed, bootstrap),
        "by_hops": _split(trajectories, lambda t: str(t.question.hops), seed, bootstrap),
        "by_type": _split(trajectories, lambda t: t.question.type or "unknown", seed, bootstrap),
        "status": {status: sum(t.status == status for t in trajectories) for status in sorted({t.status for t in trajectories})},
        "valid": float(np.mean([action.valid for t in trajectories for action in t.actions])) if trajectories else 0.0,
        "gold_recall": gold_recall(trajectories),
        "tokens_per_question": float(np.mean([sum(len(a.ids) for a in t.actions) for t in trajectories])),
        "searches_per_question": float(np.mean([t.searches for t in trajectories])),
    }


def gold_recall(trajectories: Sequence[Trajectory]) -> float | None:
    """Share of gold passages that were retrieved at any turn, over questions that have some."""
    shares = [
        len(set(t.question.gold.passages) & set(t.retrieved)) / len(set(t.question.gold.passages))
        for t in trajectories
        if t.question.gold.passages
    ]
    return float(np.mean(shares)) if shares else None


def _split(trajectories: Sequence[Trajectory], key: Callable[[Trajectory], str], seed: int, bootstrap: int) -> dict[str, Any]:
    parts = sorted({key(t) for t in trajectories})
    return {part: _scores([t for t in trajectories if key(t) == part], seed, bootstrap) for part in parts}


def _scores(trajectories: Sequence[Trajectory], seed: int, bootstrap: int) -> dict[str, Any]:
    pairs = [(t.answer, t.question.gold.answers) for t in trajectories]
    em = np.array([exact_match(answer, golds) for answer, golds in pairs])
    return {
        "em": float(em.mean()),
        "f1": float(np.mean([token_f1(answer, golds) for answer, golds in pairs])),
        "cem": float(np.mean([cover_exact_match(answer, golds) for answer, golds in pairs])),
        "n": len(em),
        "ci95": list(interval(em, seed, bootstrap)),
    }


def interval(scores: np.ndarray, seed: int, samples: int) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean."""
    generator = np.random.Generator(np.random.PCG64(seed))
    means = scores[generator.integers(0, len(scores), (samples, len(scores)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
