"""A stage of two slots and a critic: what is kept as the best is all of them, and all of them come back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rolecast.config import RunConfig
from rolecast.stages.rl import Trainer, TrainerState
from rolecast.stages.run import Run
from rolecast.types import Action, Gold, Question, Stage, Thread, Trajectory
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import slots_in
from tests.two_slots import ANSWERER, LORA, PLANNER, learner_of

WHO = Question("q", "Who?", Gold(("The The",)))


def finished(answer: str) -> Trajectory:
    thread = Thread("t/teller.0", "teller", "answerer", turns=[Action("t/teller.0#0", (1,), (0.0,), "v", answer, "stop")])
    return Trajectory("t", WHO, "g", 0, "m", 0, threads=[thread], answer=answer)


@pytest.mark.parametrize("lora", [LORA, None])
def test_a_rollback_brings_back_every_slot_and_the_critic(tmp_path: Path, lora: LoraConfig | None) -> None:
    learner = learner_of(PLANNER, ANSWERER, lora=lora)
    said = {"answer": "The The"}
    rollouts = SimpleNamespace(collect=lambda *_: [finished(said["answer"])] * 2, forget=lambda: None)
    sampler: Any = SimpleNamespace(rollouts=rollouts)
    stage = Stage("rl", "rl", objectives=(PLANNER, ANSWERER))
    trainer = Trainer(Run(tmp_path, RunConfig()), stage, learner, sampler, None, [WHO, WHO], 0, TrainerState())

    def move() -> None:
        with torch.no_grad():
            for slot in learner.slots:
                for _, parameter in learner.team.trained(slot):
                    parameter += 1

    move()
    trainer.evaluate(1, learner.weights())
    assert slots_in(trainer.best) == ["answerer", "critic", "planner"]
    best = {name: tensor.clone() for name, tensor in learner.weights().items()}
    for prefix in ("planner", "answerer", "critic"):  # a slot that is the base itself has the base's names
        assert any(prefix in name for name in best) or lora is None
    said["answer"] = "no"
    for step in (2, 3):
        move()
        trainer.evaluate(step, learner.weights())
    assert trainer._guard(3)
    assert trainer.progress.rollbacks == 1
    after = learner.weights()
    assert after.keys() == best.keys()
    assert [name for name, tensor in best.items() if not torch.equal(tensor, after[name])] == []
