"""What an evaluation says of a set of episodes: the task's scores with bootstrap intervals, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from rolecast.errors import RolecastError
from rolecast.evaluation.attribution import Texts, counted, first_fault
from rolecast.evaluation.intervals import interval
from rolecast.evaluation.reports import rightness
from rolecast.evaluation.tasks import QA, Scores, Task, means_of
from rolecast.rewards.abstention import Answered, shares
from rolecast.rewards.text import abstains
from rolecast.types import Trajectory

TOLERATED = 0.1  # share of the asked episodes that may be missing or failed


def shortfall(asked: int, done: Sequence[Trajectory], what: str) -> dict[str, float]:
    """How many of the `asked` episodes are missing, and how many failed of something else than the team.

    RolecastError if they are more than TOLERATED together: a score without them, or with zeros for them, says little. One alone
    is tolerated also of fewer than ten, unless it is all there is.
    """
    return shortfall_of(asked, len(done), [t.fault for t in done if t.status == "error"], what)


def shortfall_of(asked: int, done: int, faults: Sequence[str], what: str) -> dict[str, float]:
    """As `shortfall`, of episodes that are not in memory."""
    missing = max(0, asked - done)
    lost = missing + len(faults)
    if lost > TOLERATED * asked and (lost > 1 or lost == asked):
        raise RolecastError(
            f"{what}: of {asked} episodes {missing} are missing and {len(faults)} failed; at most {TOLERATED:.0%} may, or one. "
            f"See the log, mend what failed, run again. The last fault: {faults[-1] if faults else 'none, groups were abandoned'}"
        )
    return {"missing": float(missing), "errors": float(len(faults))}


@dataclass(frozen=True, slots=True)
class Row:
    """What totals need of an episode. An evaluation keeps this of every question, and no context of any."""

    scores: Scores
    hops: int
    type: str
    dataset: str
    status: str
    actions: int
    valid: int  # of the actions
    tokens: int  # that the answer took
    searches: int
    gold: float | None  # share of its gold passages that were retrieved; None where it has none
    fault: str = ""  # what went wrong first (`attribution.FAULTS`); "" where it is right
    abstained: bool = False
    answerable: bool = True  # whether its gold answer is one


def row_of(t: Trajectory, task: Task, scores: Scores, texts: Texts = MappingProxyType({})) -> Row:
    """`scores`: the task's, of this episode. `texts`: as `first_fault` takes them."""
    said, q = t.actions, t.question
    return Row(
        scores, q.hops, q.type, q.dataset, t.status, len(said), sum(action.valid for action in said), _said(t), t.searches, _gold_share(t),
        first_fault(t, rightness(task, scores), texts), abstains(t.answer), not any(map(abstains, q.gold.answers)),
    )  # fmt: skip


def summarize(
    trajectories: Sequence[Trajectory], seed: int, bootstrap: int, task: Task = QA, texts: Texts = MappingProxyType({})
) -> dict[str, Any]:  # fmt: skip
    """Totals, by hops and by type. Every question counts, but for those that the task cannot score: they are told apart."""
    return summarize_rows([row_of(t, task, task.scores(t), texts) for t in trajectories], seed, bootstrap, task)


def summarize_rows(rows: Sequence[Row], seed: int, bootstrap: int, task: Task) -> dict[str, Any]:
    """As `summarize`. By data set too, where the questions are of several."""
    datasets = {row.dataset for row in rows}

    support = partial(_support, seed=seed, bootstrap=bootstrap)
    by_dataset = (
        {"by_dataset": _split(rows, lambda row: row.dataset or "unnamed", seed, bootstrap, task, lambda part: {**_costs(part), **support(part)})}
        if len(datasets) > 1 else {}
    )  # fmt: skip
    return {
        "task": task.name,
        "headline": task.headline,
        **_scores(rows, seed, bootstrap, task),
        **({"others": {name: _led(rows, seed, bootstrap, name) for name in task.others}} if task.others else {}),
        "by_hops": _split(rows, lambda row: str(row.hops), seed, bootstrap, task, support),
        "by_type": _split(rows, lambda row: row.type or "unknown", seed, bootstrap, task, support),
        **by_dataset,
        "status": {status: sum(row.status == status for row in rows) for status in sorted({row.status for row in rows})},
        **({"abstention": found} if (found := _abstention(rows)) else {}),
        **_costs(rows),
        **support(rows),
    }


def _costs(rows: Sequence[Row]) -> dict[str, Any]:
    actions = sum(row.actions for row in rows)
    return {
        "valid": sum(row.valid for row in rows) / actions if actions else 0.0,
        "tokens_per_question": float(np.mean([row.tokens for row in rows])),
        "searches_per_question": float(np.mean([row.searches for row in rows])),
    }


def _support(rows: Sequence[Row], seed: int, bootstrap: int) -> dict[str, Any]:
    """Mean share of a question's gold passages that were retrieved, with its interval over the questions that have any; and what the
    episodes that are not right failed first of."""
    gold = [row.gold for row in rows if row.gold is not None]
    return {
        "gold_recall": float(np.mean(gold)) if gold else None,
        "gold_recall_n": len(gold),
        "gold_recall_ci95": list(interval(np.array(gold), seed, bootstrap)) if gold else None,
        "faults": counted([row.fault for row in rows]),
    }


def _abstention(rows: Sequence[Row]) -> dict[str, Any]:
    """Of a set that holds questions without an answer: who abstained where (`rewards.abstention`), and `right` where there is no answer."""
    asked = [(row, em) for row in rows if (em := row.scores.get("em")) is not None]
    without = [em for row, em in asked if not row.answerable]
    if not without:
        return {}
    answers = [Answered(float(row.answerable), float(row.abstained), em) for row, em in asked]
    return {"n": len(asked), "unanswerable": len(without), **shares(answers), "unanswerable_accuracy": float(np.mean(without))}


def _said(t: Trajectory) -> int:
    """Tokens that the answer took; a probe is no part of it."""
    return sum(len(action.ids) for thread in t.threads if not thread.probe for action in thread.actions)


def valid_share(trajectories: Sequence[Trajectory]) -> float:
    """Of all actions; 0 where there is none."""
    valid = [action.valid for t in trajectories for action in t.actions]
    return float(np.mean(valid)) if valid else 0.0


def _gold_share(t: Trajectory) -> float | None:
    """Share of gold passages that were retrieved at any turn; None of a question without any."""
    gold = set(t.question.gold.passages)
    return len(gold & set(t.retrieved)) / len(gold) if gold else None


def _split(
    rows: Sequence[Row], key: Callable[[Row], str], seed: int, bootstrap: int, task: Task,
    more: Callable[[Sequence[Row]], dict[str, Any]] = lambda rows: {},
) -> dict[str, Any]:  # fmt: skip
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(key(row), []).append(row)
    return {part: {**_scores(parts[part], seed, bootstrap, task), **more(parts[part])} for part in sorted(parts)}


def _scores(rows: Sequence[Row], seed: int, bootstrap: int, task: Task) -> dict[str, Any]:
    """The task's scores, with the interval of its headline over the `n` episodes that have one."""
    return {task.headline: None, **means_of([row.scores for row in rows]), **_led(rows, seed, bootstrap, task.headline)}


def bounds_of(found: Sequence[Scores], seed: int, bootstrap: int) -> dict[str, float]:
    """`NAME/low` and `NAME/high` of each score that any episode has: the ends of its mean's 95 % interval."""
    bounds: dict[str, float] = {}
    for name in dict.fromkeys(name for scores in found for name in scores):
        values = [value for scores in found if (value := scores.get(name)) is not None]
        if values:
            bounds[f"{name}/low"], bounds[f"{name}/high"] = interval(np.array(values), seed, bootstrap)
    return bounds


def _led(rows: Sequence[Row], seed: int, bootstrap: int, name: str) -> dict[str, Any]:
    """Over how many episodes the score's mean is taken, its interval, and how many have no such score."""
    led = [value for row in rows if (value := row.scores[name]) is not None]
    unscored = {"unscored": len(rows) - len(led)} if len(led) < len(rows) else {}
    return {"n": len(led), "ci95": list(interval(np.array(led), seed, bootstrap)) if led else None, **unscored}
