"""A run's budget: tokens that trained roles sample while the run learns by reinforcement, probes and prepared episodes included.

Greedy replies to dev and test questions are no part of it. RL stages share it: each may take an equal part of what is left.

The judge has a budget of its own (`judge.budget`), since its tokens are paid for: all that it reads and says in RL, dev included, and in
evaluations of the run's models. What those took is noted beside the run, whether or not they came to an end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rolecast.config import RunConfig
from rolecast.errors import NamedStop
from rolecast.ports import JudgeInfo, Verdict
from rolecast.stages.run import Run
from rolecast.store.artifact import parse_manifest, write_text
from rolecast.types import Stage

JUDGED = "judged.json"
ON_DEV = "judge_tokens_on_dev"  # in the provenance of a stage's model, beside its cost, which is without dev


def trained_roles(config: RunConfig, stage: Stage) -> frozenset[str]:
    """Roles whose tokens count where the stage samples: in RL those that speak with a slot that it trains; where nothing is trained,
    in a rollout stage or an evaluation, those that it or any stage before it has trained."""
    stages = [stage] if stage.kind == "rl" else [*_before(config.schedule, stage), stage]
    return frozenset(role for of in stages for role, spec in config.method_in(of).roles.items() if spec.slot in of.trained)


def ever_trained(config: RunConfig, stage: Stage) -> frozenset[str]:
    """Roles that were trained when the stage ends."""
    stages = [*_before(config.schedule, stage), stage]
    return frozenset(role for of in stages for role in trained_roles(config, of))


def allowance(run: Run, stage: Stage) -> int | None:
    """Tokens that the stage may sample; it ends at the step that passes them. None where the run has no budget.

    What earlier stages left is shared out evenly among this RL stage and those that follow: the last one gets all that is left.
    """
    if run.config.budget is None:
        return None
    schedule = run.config.schedule
    spent = sum(int(account["sampled"]) for account in accounts(run, _before(schedule, stage)).values())
    to_come = [of for of in schedule if of.kind == "rl" and of not in _before(schedule, stage)]
    return max(0, (run.config.budget - spent) // len(to_come))


def judge_allowance(run: Run, stage: Stage) -> int | None:
    """Tokens of the judge that earlier stages, and evaluations until now, left; None where it has no budget."""
    return _judge_left(run, _before(run.config.schedule, stage))


def judge_left(run: Run) -> int | None:
    """Tokens of the judge that all stages and evaluations until now left; None where it has no budget."""
    return _judge_left(run, run.config.schedule)


def _judge_left(run: Run, stages: Sequence[Stage]) -> int | None:
    if run.config.judge.budget is None:
        return None
    spent = sum(int(account["judge_tokens"]) for account in accounts(run, stages).values())
    on_dev = sum(int(_made(run, of).get(ON_DEV, 0)) for of in stages)
    return max(0, run.config.judge.budget - spent - on_dev - sum(judged_in_evaluations(run).values()))


def judged_in_evaluations(run: Run) -> dict[str, int]:
    """Tokens that the judge took, by the evaluation's name."""
    file = run.recall(run.path / JUDGED)
    found: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
    return found


def note_judged(run: Run, evaluation: str, tokens: int) -> None:
    """Adds to what the judge took for an evaluation."""
    if tokens:
        before = judged_in_evaluations(run)
        write_text(run.path / JUDGED, json.dumps({**before, evaluation: before.get(evaluation, 0) + tokens}))
        run.record(run.path / JUDGED)


def judge_spent(budget: int, what: str) -> NamedStop:
    """Ends a command whose judge may say no more. `what`: what is kept."""
    return NamedStop(f"the judge's budget of {budget} tokens is spent: {what}; give the same command with --set judge.budget=MORE to go on")


@dataclass(frozen=True, slots=True)
class SpentJudge:
    """Stands where nothing is left of the `budget`: what asks no judge goes on, and the first question to one ends the evaluation."""

    budget: int
    evaluation: str

    async def info(self) -> JudgeInfo:
        return JudgeInfo("spent")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        raise judge_spent(self.budget, f"{self.evaluation} is not evaluated")


def accounts(run: Run, stages: Sequence[Stage]) -> dict[str, dict[str, Any]]:
    """What each finished RL or rollout stage cost, by its name, as its artifact tells, and why RL ended."""
    found = {}
    for stage in stages:
        made = _made(run, stage)
        if "cost" in made:
            found[stage.name] = {**made["cost"], **({"ended": made["ended"]} if made.get("ended") else {})}
    return found


def _made(run: Run, stage: Stage) -> dict[str, Any]:
    """What a stage's artifact says of how it was made; nothing of one that has none yet."""
    manifest = run.manifest(run.result(stage))
    return dict(parse_manifest(manifest, str(run.result(stage))).get("provenance", {})) if manifest is not None else {}


def _before(schedule: Sequence[Stage], stage: Stage) -> list[Stage]:
    return list(takewhile(lambda of: of.name != stage.name, schedule))
