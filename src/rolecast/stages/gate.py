"""Whether a run's team should take the place of the one that is deployed: by a paired bootstrap over the test questions of both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from rolecast.errors import InputError
from rolecast.stages.compared import met_by
from rolecast.stages.gains import differences, scores_of
from rolecast.stages.run import Run


@dataclass(frozen=True, slots=True)
class Team:
    """What speaks in a deployment: the model of a stage of a run."""

    run: Run
    stage: str

    def __str__(self) -> str:
        return f"{self.run.place}, stage {self.stage}"


@dataclass(frozen=True, slots=True)
class Decision:
    """`mean`, `low`, `high`: of the difference of the scores on the same `questions`, with its 95 % interval; None for a first one."""

    deploys: bool
    reason: str
    measure: str
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    questions: int = 0


def decide(candidate: Team, deployed: Team | None, margin: float, least: int) -> Decision:
    """Deploys where the interval of candidate − deployed lies above −`margin`, and where nothing is deployed.

    InputError where they cannot be compared: other questions than `least` at least, another index or judge, no evaluation.
    """
    measure = _headline(candidate)
    if deployed is None:
        return Decision(True, "nothing is deployed under this name", measure)
    if _same(candidate, deployed):
        return Decision(False, f"{deployed} is deployed already", measure)
    if met_by(candidate.run) != met_by(deployed.run):
        raise InputError(f"{candidate} and {deployed} search another index, or have another judge: they cannot be compared")
    if deployed.run.manifest(deployed.run.evaluation(deployed.stage)) is None:
        raise InputError(f"{deployed}, which is deployed, was not evaluated: `rolecast eval {deployed.run.place} --stage {deployed.stage}`")
    found = differences(scores_of(candidate.run, candidate.stage), scores_of(deployed.run, deployed.stage)).get(measure, {"n": 0})
    if found["n"] < least:
        raise InputError(
            f"{candidate} and {deployed} were asked {found['n']} test questions in common with a score {measure}, and {least} are wanted: "
            "evaluate both on the same questions, or lower `questions`"
        )
    above = found["low"] > -margin
    interval = f"{found['mean']:+.3f}, 95 % interval {found['low']:+.3f} to {found['high']:+.3f}"
    reason = f"{measure} differs by {interval}; it {'lies' if above else 'does not lie'} above {-margin:+.3f}"
    return Decision(above, reason, measure, found["mean"], found["low"], found["high"], found["n"])


def _same(one: Team, other: Team) -> bool:
    return one.stage == other.stage and one.run.manifest(one.run.model(one.stage)) == other.run.manifest(other.run.model(other.stage))


def _headline(team: Team) -> str:
    if team.run.manifest(team.run.evaluation(team.stage)) is None:
        raise InputError(f"{team} was not evaluated: `rolecast eval {team.run.place} --stage {team.stage}`")
    scores_of(team.run, team.stage)  # fetched and verified
    result: dict[str, Any] = json.loads((team.run.evaluation(team.stage) / "result.json").read_text())
    return str(result["headline"])


def notes(candidate: Team, deployed: Team | None, decision: Decision) -> str:
    """Markdown."""
    rows = [
        f"| candidate | {candidate} |",
        f"| deployed | {deployed or 'nothing'} |",
        f"| decision | {'deploy' if decision.deploys else 'keep'} |",
    ]
    if decision.mean is not None:
        rows += [
            f"| {decision.measure}, candidate − deployed | {decision.mean:+.4f} |",
            f"| 95 % paired bootstrap interval | {decision.low:+.4f} to {decision.high:+.4f} |",
            f"| questions | {decision.questions} |",
        ]
    return "\n".join(["# Gate", "", "| | |", "| --- | --- |", *rows, "", f"{decision.reason[0].upper()}{decision.reason[1:]}.", ""])
