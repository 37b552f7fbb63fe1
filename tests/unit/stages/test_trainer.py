"""How a trainer is put together: from the config, the splits' questions, and where there is one, its newest checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rolecast.config import make_config
from rolecast.evaluation.cost import Cost
from rolecast.learner.backends import PlainBackend
from rolecast.learner.learner import make_learner
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import OptimizerConfig
from rolecast.stages import checkpoints
from rolecast.stages import rl as rl_stage
from rolecast.stages.rl import Trainer, TrainerState
from rolecast.stages.run import Run
from rolecast.stages.segments import segments_of
from rolecast.types import Gold, Question, Stage
from rolecast.weights.team import Casting
from tests.tiny import tiny_team

SPLITS = {split: [Question(f"{split}{i}", "Which band is it?", Gold(("The The",))) for i in range(5)] for split in ("train", "dev", "test")}
PREPARED = {split: [replace(question, given={"plan": "a"}) for question in questions] for split, questions in SPLITS.items()}
ANCHORED = Casting(frozenset({"shared"}), ("shared",), frozen=True)
SETTINGS = {
    "temperature": 0.75, "max_tokens": 512, "packing": "prefixes", "dev": 3, "steps": 7,
    "optimizer": {"name": "sgd"}, "optimizers": {"shared": {"name": "sgd", "momentum": 0.5, "schedule": "linear"}},
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, make_config({"stages": {"rl": SETTINGS}}, "here"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """What the team was built from."""
    found: list[Path | None] = []

    def team(run: Run, method: Any, stage: Stage, saved: Path | None) -> Any:
        found.append(saved)
        return tiny_team(ANCHORED)

    @contextmanager
    def publisher(run: Run, method: Any, stage: Stage, team: Any) -> Iterator[Any]:
        yield SimpleNamespace(rollouts="rollouts")

    monkeypatch.setattr(rl_stage, "training_team", team)
    monkeypatch.setattr(rl_stage, "open_publisher", publisher)
    monkeypatch.setattr(rl_stage, "load_questions", lambda run, split, data: PREPARED[split] if data == "plans" else SPLITS[split])
    return found


def opened(run: Run) -> Trainer:
    with ExitStack() as stack:
        return Trainer.open(run, run.config.schedule[1], ALONE, stack)


def test_each_split_has_its_use(run: Run, started: list[Path | None]) -> None:
    trainer = opened(run)
    assert trainer.sampler is not None
    assert list(trainer.sampler.questions) == SPLITS["train"]
    assert trainer.dev == SPLITS["dev"][:3]


def test_a_stage_on_prepared_questions_is_trained_and_selected_on_them(run: Run, started: list[Path | None]) -> None:
    stage = replace(run.config.schedule[1], data="plans")
    with ExitStack() as stack:
        trainer = Trainer.open(run, stage, ALONE, stack)
    assert trainer.sampler is not None
    assert (list(trainer.sampler.questions), trainer.dev) == (PREPARED["train"], PREPARED["dev"][:3])


def test_the_learner_has_the_stages_settings(run: Run, started: list[Path | None]) -> None:
    learner = opened(run).learner
    assert (learner.temperature, learner.max_tokens, learner.packing, learner.seed) == (0.75, 512, "prefixes", run.config.seed)
    assert isinstance(learner.backend, PlainBackend)
    [part] = learner.backend.optimizers["shared"].parts
    assert part.param_groups[0]["momentum"] == 0.5  # of the slot's own optimizer
    [objective] = run.config.schedule[1].objectives
    updates = 7 * objective.epochs * objective.minibatches
    assert learner.backend.rate("shared", updates // 2) == pytest.approx(objective.lr * (1 - (updates // 2 + 1) / updates))


def test_a_new_stage_begins_at_its_start(run: Run, started: list[Path | None]) -> None:
    trainer = opened(run)
    assert (trainer.start, started) == (0, [None])
    assert trainer.progress == TrainerState({"step": -1, "score": -1.0}, low=0, rollbacks=0, cost=asdict(Cost()), dropped=0, idle=0)
    assert trainer.learner.updates == {}


def test_a_stage_goes_on_from_its_newest_checkpoint(run: Run, started: list[Path | None]) -> None:
    stage = run.config.schedule[1]
    learner = make_learner(stage.objectives, tiny_team(ANCHORED), OptimizerConfig(name="sgd", momentum=0.5), 7, 0)
    moved = learner.team.trained("shared")[0][1]
    moved.grad = torch.ones_like(moved)
    learner.backend.step({"shared": 0})
    learner.updates = {"shared": 9}
    state = TrainerState({"step": 2, "score": 0.5}, low=1, rollbacks=1, cost=asdict(Cost(70, 3, context={"planner": 9})), dropped=4, idle=2)
    for step in (2, 3):
        checkpoints.save(run, "rl", step, learner, asdict(state), 2)
    trainer = opened(run)
    assert (trainer.start, trainer.progress) == (3, state)
    assert [place.name for place in started if place] == ["step-000003"]
    assert trainer.sampler is not None
    assert (trainer.sampler.cost, trainer.sampler.dropped) == (Cost(70, 3, context={"planner": 9}), 4)
    assert trainer.learner.updates == {"shared": 9}
    assert isinstance(trainer.learner.backend, PlainBackend)
    [part] = trainer.learner.backend.optimizers["shared"].parts
    assert part.state  # the momentum that was saved


def test_a_stage_records_how_it_is_run_from_where_it_goes_on(run: Run, started: list[Path | None]) -> None:
    trainer = opened(run)
    checkpoints.save(run, "rl", 3, trainer.learner, asdict(trainer.progress), keep=2)
    again = Run(run.path, make_config({"stages": {"rl": {**SETTINGS, "questions": 5}}}, "here"))
    opened(again)
    segments = segments_of(again, "rl")
    assert [(s["step"], s["settings"]["stages.rl.questions"], s["environment"]["judge"]) for s in segments] == [
        (0, 8, "here"),
        (3, 5, "here"),
    ]
