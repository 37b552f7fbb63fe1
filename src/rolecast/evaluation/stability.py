"""Does training stay where it got? Collapse rates over seeds, and how long replies are meanwhile.

M-ASK's measure: a run has collapsed where its score stays under a tenth of its best for three evaluations and never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Any

from rolecast.evaluation.table import aligned

FRACTION = 0.1  # of the best score so far
EVALUATIONS = 3  # in a row, to the end of the run
Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True, slots=True)
class Course:
    """One RL stage of one run: dev scores, and the mean length of each role's replies in training, both by step."""

    label: str
    stage: str
    seed: int
    taught: bool  # by SFT before
    scores: Sequence[tuple[int, float]]
    lengths: Mapping[str, Sequence[tuple[int, float]]]


def collapsed_at(scores: Sequence[tuple[int, float]]) -> int | None:
    """The step of the first evaluation of a fall that lasts to the end; None where there is none, or where nothing was learned."""
    best, since, low = 0.0, None, 0
    for step, score in scores:
        best = max(best, score)
        if score < FRACTION * best:
            since, low = (step if since is None else since), low + 1
        else:
            since, low = None, 0
    return since if low >= EVALUATIONS else None


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95 % interval of a share, which says something of few runs too (Wilson 1927)."""
    share, n = hits / of, float(of)
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def stability(courses: Sequence[Course], steps: Sequence[int]) -> dict[str, Any]:
    """As JSON has it: a row for each method, stage and kind of start, its collapse rate at each of `steps`."""
    kinds = dict.fromkeys((course.label, course.stage, course.taught) for course in courses)
    rows = []
    for label, stage, taught in kinds:
        own = [course for course in courses if (course.label, course.stage, course.taught) == (label, stage, taught)]
        fallen = {course.seed: collapsed_at(course.scores) for course in own}
        rates = []
        for step in steps:
            count = sum(at is not None and at <= step for at in fallen.values())
            low, high = wilson(count, len(own))
            rates.append({"step": step, "collapsed": count, "of": len(own), "low": low, "high": high})
        rows.append(
            {
                "method": label, "stage": stage, "sft": taught, "rates": rates, "collapsed": fallen,
                "best": {course.seed: max((score for _, score in course.scores), default=0.0) for course in own},
                "last": {course.seed: course.scores[-1][1] if course.scores else None for course in own},
                "scores": {course.seed: list(map(list, course.scores)) for course in own},
                "lengths": _lengths(own),
            }
        )  # fmt: skip
    return {"steps": list(steps), "fraction": FRACTION, "evaluations": EVALUATIONS, "rows": rows}


def _lengths(courses: Sequence[Course]) -> dict[str, list[list[float]]]:
    """Of each role's replies, the mean over seeds of the means of each step."""
    found: dict[str, list[list[float]]] = {}
    for role in dict.fromkeys(role for course in courses for role in course.lengths):
        by_step: dict[int, list[float]] = {}
        for course in courses:
            for step, tokens in course.lengths.get(role, ()):
                by_step.setdefault(step, []).append(tokens)
        found[role] = [[step, fmean(by_step[step])] for step in sorted(by_step)]
    return found


def stability_table(found: Mapping[str, Any]) -> str:
    head = ["method", "stage", "SFT", *(f"at {step}" for step in found["steps"]), "best", "last"]
    rows = []
    for row in found["rows"]:
        rates = [f"{rate['collapsed']}/{rate['of']}" for rate in row["rates"]]
        ends = [value for value in row["last"].values() if value is not None]
        best, last = f"{100 * fmean(row['best'].values()):.1f}", f"{100 * fmean(ends):.1f}" if ends else "–"
        rows.append([row["method"], row["stage"], "yes" if row["sft"] else "no", *rates, best, last])
    return aligned(head, rows)
