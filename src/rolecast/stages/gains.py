"""What reinforcement added: scores of later models against those of the model that it began with, on the same test questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rolecast.evaluation.comparison import paired
from rolecast.schedule import Schedule
from rolecast.schedule import find as find_stage
from rolecast.stages.run import Run
from rolecast.store.artifact import verify

Scores = Mapping[str, Mapping[str, float | None]]


def start_of_rl(schedule: Schedule) -> str:
    """The stage whose model the first RL stage begins with; "" where there is none."""
    first = next((stage for stage in schedule if stage.kind == "rl"), None)
    return find_stage(schedule, first.start).name if first and first.start else ""


def scores_of(run: Run, stage: str) -> Scores:
    """Of each test question. Its key holds what was asked and what is right: worlds of two seeds never share one."""
    run.has(run.evaluation(stage))
    verify(run.evaluation(stage), "evaluation")
    rows = map(json.loads, (run.evaluation(stage) / "predictions.jsonl").read_text().splitlines())
    return {json.dumps([row["id"], row["question"], row["golds"]]): row["scores"] for row in rows}


def gains(run: Run, evaluated: Sequence[str]) -> dict[str, Any]:
    """`over`: the model that RL began with. `stages`: for each later one, the mean paired difference of every score that both have, with
    its 95 % bootstrap interval over questions, and McNemar's test of those that are right or wrong. Empty where there is nothing to compare."""
    start = start_of_rl(run.config.schedule)
    later = [stage for stage in evaluated if stage != start] if start in evaluated else []
    if not later:
        return {}
    before = scores_of(run, start)
    return {"over": start, "stages": {stage: differences(scores_of(run, stage), before) for stage in later}}


def differences(after: Scores, before: Scores) -> dict[str, dict[str, Any]]:
    """By score: mean, low, high and n of `after` − `before`, over the questions for which both have it."""
    found: dict[str, dict[str, float]] = {}
    for question, scores in after.items():
        for name, value in scores.items():
            old = before.get(question, {}).get(name)
            if value is not None and old is not None:
                found.setdefault(name, {})[question] = value - old
    return {name: paired([of]) for name, of in found.items()}
