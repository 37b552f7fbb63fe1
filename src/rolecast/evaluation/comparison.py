"""Methods side by side: scores with intervals over questions and spread over seeds, paired differences, and what they cost.

Pure numbers: what runs are read from, and how they are made comparable, is `stages.comparison`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

import numpy as np

from rolecast.errors import InputError
from rolecast.evaluation.cost import Cost
from rolecast.evaluation.intervals import DIFFERENCES, SHARES, interval, mcnemar
from rolecast.evaluation.table import aligned

SAMPLES = 10_000  # resamples behind an interval


@dataclass(frozen=True, slots=True)
class Point:
    """A dev evaluation: after how many sampled tokens, and the score."""

    sampled: float
    score: float


@dataclass(frozen=True, slots=True)
class Finished:
    """One run of a method. `scores`: of each test question, by its key, which says what was asked and what is right."""

    method: str
    seed: int
    trained: bool  # by reinforcement
    headline: str
    scores: Mapping[str, Mapping[str, float | None]]
    start: Mapping[str, Mapping[str, float | None]]  # of the model that RL started from; empty where there was none
    training: Cost  # of its RL and rollout stages
    evaluation: Cost  # of its test
    seconds: Mapping[str, float]  # by stage
    curve: Sequence[Point] = field(default_factory=tuple)
    ended: Sequence[str] = ()  # why its RL stages ended


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % bootstrap interval over `n` questions."""

    mean: float
    low: float
    high: float
    n: int


def compared(runs: Sequence[Finished], measure: str = "") -> dict[str, Any]:
    """The comparison as JSON has it. `measure`: a score that all have; by default the headline that all share, else exact match.

    A question counts once: where several seeds were asked the same one, with the mean of their scores.
    """
    measure = measure or common_measure(runs)
    by_method: dict[str, list[Finished]] = defaultdict(list)
    for run in runs:
        by_method[run.method].append(run)
    names = list(by_method)
    return {
        "measure": measure,
        "seeds": sorted({run.seed for run in runs}),
        "methods": [_row(name, by_method[name], measure) for name in names],
        "pairs": [
            _pair(a, by_method[a], b, by_method[b], measure) for i, b in enumerate(names) for a in names[i + 1 :]
        ],
    }  # fmt: skip


def common_measure(runs: Sequence[Finished]) -> str:
    headlines = {run.headline for run in runs}
    return headlines.pop() if len(headlines) == 1 else "em"


def _row(name: str, runs: Sequence[Finished], measure: str) -> dict[str, Any]:
    per_seed = {run.seed: fmean(_values(run.scores, measure, run.method).values()) for run in runs}
    count = len(runs)
    training, evaluation = sum((run.training for run in runs), Cost()), sum((run.evaluation for run in runs), Cost())
    asked = sum(len(run.scores) for run in runs)
    return {
        "method": name,
        "trained": any(run.trained for run in runs),
        **asdict(estimate([_values(run.scores, measure, name) for run in runs])),
        "per_seed": per_seed,
        "spread": stdev(per_seed.values()) if count > 1 else None,
        "start": asdict(estimate([_values(run.start, measure, name) for run in runs])) if all(run.start for run in runs) else None,
        "f1": _mean(runs, "f1"),
        # of a run, the mean over seeds; of contexts, the longest
        "training": {**{key: value / count for key, value in training.totals().items()}, "context": dict(training.context)},
        # of a question
        "evaluation": {**{key: value / asked for key, value in evaluation.totals().items()}, "context": dict(evaluation.context)},
        "seconds": {
            stage: fmean(run.seconds.get(stage, 0.0) for run in runs) for stage in dict.fromkeys(s for r in runs for s in r.seconds)
        },
        "ended": sorted({why for run in runs for why in run.ended}),
        "curves": {run.seed: [[point.sampled, point.score] for point in run.curve] for run in runs},
    }


def _pair(a: str, of_a: Sequence[Finished], b: str, of_b: Sequence[Finished], measure: str) -> dict[str, Any]:
    """`a` against `b`: the mean difference of their scores on the same questions with the same seeds."""
    others = {run.seed: _values(run.scores, measure, b) for run in of_b}
    differences = []
    for run in of_a:
        own, other = _values(run.scores, measure, a), others.get(run.seed, {})
        differences.append({question: own[question] - other[question] for question in own if question in other})
    if not any(differences):
        raise InputError(f"{a} and {b} have no question of one seed in common: compare runs of the same seeds")
    return {"a": a, "b": b, **paired(differences)}


def paired(differences: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Of each seed, by question, how much more the one of two scores: mean, low, high and n. With McNemar's test where both were right or
    wrong and one seed asked: questions that got `better` and `worse`, and its `p`."""
    found = asdict(estimate(differences, DIFFERENCES))
    values = list(differences[0].values())
    if len(differences) > 1 or not set(values) <= {-1.0, 0.0, 1.0}:
        return found
    better, worse = values.count(1.0), values.count(-1.0)
    return {**found, "better": better, "worse": worse, "p": mcnemar(better, worse)}


def estimate(values: Sequence[Mapping[str, float]], within: tuple[float, float] = SHARES) -> Estimate:
    """Over questions. `values`: of each seed, by question; the values of one question are averaged first. They lie `within`."""
    of_question: dict[str, list[float]] = defaultdict(list)
    for seed in values:
        for question, value in seed.items():
            of_question[question].append(value)
    means = np.array([fmean(found) for found in of_question.values()])
    low, high = interval(means, 0, SAMPLES, within)
    return Estimate(float(means.mean()), low, high, len(means))


def _values(scores: Mapping[str, Mapping[str, float | None]], measure: str, method: str) -> dict[str, float]:
    """A question without the score is left out; `InputError` where none has it."""
    found = {question: value for question, of in scores.items() if (value := of.get(measure)) is not None}
    if not found:
        names = sorted({name for of in scores.values() for name, value in of.items() if value is not None})
        have = f"; name another by --measure: {', '.join(names)}" if names else ""
        raise InputError(f"no episode of {method} has the score {measure!r}{have}")
    return found


def _mean(runs: Sequence[Finished], measure: str) -> float | None:
    found = [value for run in runs for of in run.scores.values() if (value := of.get(measure)) is not None]
    return fmean(found) if found else None


def comparison_table(found: Mapping[str, Any]) -> str:
    """Head to head as a text table: the first method is what the others are compared with."""
    measure, first = found["measure"], found["methods"][0]["method"]
    against = {pair["a"]: pair for pair in found["pairs"] if pair["b"] == first}
    head = [
        "method", "EM" if measure == "em" else measure, "95 % interval", "seeds ±", f"− {first}", "95 % interval", "SFT", "RL tokens",
        "tokens", "searches", "context", "minutes",
    ]  # fmt: skip
    rows = [_cells(row, against.get(row["method"])) for row in found["methods"]]
    return aligned(head, rows)


def _cells(row: Mapping[str, Any], pair: Mapping[str, Any] | None) -> list[str]:
    difference = [f"{100 * pair['mean']:+.1f}", f"{100 * pair['low']:+.1f} – {100 * pair['high']:+.1f}"] if pair else ["", ""]
    return [
        row["method"], percent(row["mean"]), f"{percent(row['low'])} – {percent(row['high'])}", percent(row["spread"]), *difference,
        percent(row["start"]["mean"] if row["start"] else None), f"{row['training']['sampled']:,.0f}",
        f"{row['evaluation']['sampled'] + row['evaluation']['frozen']:.0f}", f"{row['evaluation']['searches']:.1f}",
        str(max(row["evaluation"]["context"].values(), default=0)), f"{sum(row['seconds'].values()) / 60:.1f}",
    ]  # fmt: skip


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"
