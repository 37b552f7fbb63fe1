"""What RL counts and reports: no answer is 0, and only trained slots spend the budget."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted import TWO_HOPS

from rolecast.config import RunConfig
from rolecast.errors import CollapseError, RolecastError
from rolecast.evaluation.metrics import summarize
from rolecast.learner.backends import PlainBackend
from rolecast.learner.learner import Learner
from rolecast.learner.model import Policy
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import OptimizerConfig
from rolecast.stages.rl import Trainer, TrainerState
from rolecast.stages.run import Run
from rolecast.stages.sampling import Sampler, describe
from rolecast.types import Action, Gold, Question, Thread, Trajectory
from tests.tiny import TOKENIZER, tiny_model

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


def sampler(done: list[Trajectory]) -> Any:
    objective = SimpleNamespace(slot="shared")
    rollouts: Any = SimpleNamespace(collect=lambda episodes, sampling, phase: done)
    return Sampler(RunConfig(), objective, rollouts, [TWO_HOPS])  # type: ignore[arg-type]


def test_the_budget_counts_probes_and_no_frozen_role() -> None:
    made = sampler([finished(), finished()])
    made._groups(0, 0, 1)
    assert made.sampled == 2 * (3 + 2)


@pytest.mark.parametrize(("answer", "em"), [(None, 0.0), ("The The", 1.0)])
def test_no_answer_scores_zero_in_every_report(answer: str | None, em: float) -> None:
    done = [finished(THE_THE, answer)]
    assert describe(done, [])["train/em"] == em
    assert [summarize(done, 0, 100)[name] for name in ("em", "f1", "cem")] == [em] * 3


def ended(status: Any, answer: str | None = None) -> Trajectory:
    t = finished(THE_THE, answer)
    t.status, t.fault = status, "OSError: the index is on fire" if status == "error" else ""
    return t


def test_what_ended_without_fault_of_a_role_is_counted() -> None:
    numbers = describe([ended("error"), ended("length"), ended("length"), ended("format"), ended("ok")], [])
    assert (numbers["episodes/error"], numbers["episodes/length"]) == (1.0, 2.0)


def test_an_episode_that_failed_scores_zero_in_the_evaluation_of_a_test_set() -> None:
    numbers = summarize([ended("error"), *[ended("ok", "The The")] * 9], 0, 100)
    assert (numbers["em"], numbers["n"], numbers["status"]) == (0.9, 10, {"error": 1, "ok": 9})


class Collapsing:
    """A trainer of a tiny model whose dev score is told, and whose training makes every weight worse by one."""

    def __init__(self, folder: Path) -> None:
        self.model = tiny_model()
        self.resets = 0
        policy = Policy(self.model)
        backend = PlainBackend(policy, OptimizerConfig(), 1e-3, 10, ALONE)
        backend.optimizer.reset = self._reset  # type: ignore[method-assign]
        run = Run(folder, RunConfig())
        objective: Any = SimpleNamespace()
        learner = Learner(objective, policy, backend, seed=0)
        rollouts = SimpleNamespace(collect=lambda episodes, sampling, phase: [finished(THE_THE, a) for a in self._answers])
        anything: Any = (run, learner, SimpleNamespace(rollouts=rollouts), None, TOKENIZER, [THE_THE], 0, TrainerState())
        self.trainer = Trainer(*anything)
        self.step = 0

    def _reset(self) -> None:
        self.resets += 1

    def train(self, em: float) -> None:
        """One interval between evaluations, after which `em` of ten questions are answered right."""
        with torch.no_grad():
            for weights in self.model.parameters():
                weights += 1
        self._answers = ["The The" if i < 10 * em else "no" for i in range(10)]
        self.step += 10
        self.trainer.evaluate(self.step)
        self.trainer._guard(self.step)

    def weights(self) -> torch.Tensor:
        return self.model.get_input_embeddings().weight.detach().clone()


def test_a_collapse_brings_back_the_best_weights_and_a_new_optimizer(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    run.train(0.8)
    best = run.weights()
    run.train(0.3)
    assert run.resets == 0  # once may be chance
    run.train(0.3)
    assert torch.equal(run.weights(), best)
    assert (run.resets, run.trainer.progress.rollbacks, run.trainer.progress.low) == (1, 1, 0)


def test_scores_that_are_low_but_not_in_a_row_are_no_collapse(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    for em in (0.8, 0.3, 0.5, 0.3, 0.7, 0.3):
        run.train(em)
    assert (run.resets, run.trainer.progress.rollbacks) == (0, 0)


def test_a_second_collapse_ends_the_run_and_keeps_the_best_model(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    for em in (0.8, 0.3, 0.3, 0.3):
        run.train(em)
    with pytest.raises(CollapseError, match="step 50: dev EM stayed under 50% of its best"):
        run.train(0.3)
    assert run.trainer.progress.best == {"step": 10, "em": 0.8}


def test_dev_scores_tell_what_they_are_not_taken_over(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    run.trainer.dev = [THE_THE] * 20
    done = [ended("error"), *[ended("ok", "The The")] * 9, *[ended("ok", "no")] * 9]  # and one is missing
    run.trainer.sampler.rollouts = SimpleNamespace(collect=lambda episodes, sampling, phase: done)  # type: ignore[union-attr]
    numbers = run.trainer._evaluated(10)
    assert (numbers["dev/em"], numbers["dev/missing"], numbers["dev/errors"]) == (0.5, 1.0, 1.0)
    del done[-1]
    with pytest.raises(RolecastError, match=r"step 20, dev: of 20 episodes 2 are missing and 1 failed.*OSError: the index is on fire"):
        run.trainer._evaluated(20)
