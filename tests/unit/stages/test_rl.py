"""What RL counts and reports: no answer is 0, and only trained slots spend the budget."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scripted import TWO_HOPS

from rolecast.config import RunConfig
from rolecast.evaluation.metrics import summarize
from rolecast.stages.rl import Trainer, TrainerState, describe
from rolecast.types import Action, Gold, Question, Thread, Trajectory

THE_THE = Question("q", "Which band is it?", Gold(("The The",)))


def act(id: str, tokens: int) -> Action:
    return Action(id, (1,) * tokens, (0.0,) * tokens, "v", "", "stop")


def finished(question: Question = TWO_HOPS, answer: str | None = None) -> Trajectory:
    """3 tokens of the planner, 5 of a frozen condenser, 2 of a probe of the answerer."""
    threads = [
        Thread("t0", "planner", "shared", turns=[act("a", 3)]),
        Thread("t1", "condenser", "frozen", turns=[act("b", 5)]),
        Thread("t2", "answerer", "shared", probe=True, turns=[act("c", 2)]),
    ]
    return Trajectory("t", question, "g", 0, "decor", 0, threads=threads, answer=answer)


def trainer(done: list[Trajectory]) -> Any:
    run = SimpleNamespace(config=RunConfig())
    learner = SimpleNamespace(objective=SimpleNamespace(slot="shared"))
    collector = SimpleNamespace(collect=lambda episodes, sampling, phase: done)
    anything: Any = (run, learner, collector, None, None, [TWO_HOPS], [], 0, TrainerState())
    return Trainer(*anything)


def test_the_budget_counts_probes_and_no_frozen_role() -> None:
    made = trainer([finished(), finished()])
    made._groups(0, 0, 1)
    assert made.progress.sampled == 2 * (3 + 2)


@pytest.mark.parametrize(("answer", "em"), [(None, 0.0), ("The The", 1.0)])
def test_no_answer_scores_zero_in_every_report(answer: str | None, em: float) -> None:
    done = [finished(THE_THE, answer)]
    assert describe(done, [])["train/em"] == em
    assert [summarize(done, 0, 100)[name] for name in ("em", "f1", "cem")] == [em] * 3
