"""Goes through one stage of a run's schedule, of whichever kind it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rolecast.errors import InputError
from rolecast.evaluation import tasks
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.methods.registry import make_method
from rolecast.schedule import find
from rolecast.stages import checkpoints
from rolecast.stages.belonging import require_own
from rolecast.stages.checks import require_engine, require_ranks
from rolecast.stages.rl import rl
from rolecast.stages.rollout import rollout
from rolecast.stages.run import Run
from rolecast.stages.sft import sft
from rolecast.stages.team import prepare_torch, require_model, require_questions
from rolecast.stages.working import working
from rolecast.types import TRAIN, Stage

KINDS: dict[str, Callable[[Run, Stage, Ranks], None]] = {"sft": sft, "rollout": rollout, "rl": rl}


def train(run: Run, name: str, ranks: Ranks = ALONE) -> Path:
    """Trains, or goes on from the newest checkpoint; returns the folder of the model, or of the questions that a rollout stage
    prepares. Does nothing if it is there."""
    method = make_method(run.config.method)
    if not method.schedule():
        raise InputError(f"method {method.name} is not trained; see `rolecast methods`")
    require_ranks(run.config)
    require_engine(run.config, name)
    stage = find(method.schedule(), name)
    tasks.find(stage.task)
    require_own(run)
    if checkpoints.ready(run, run.result(stage), ranks):
        return run.result(stage)
    if stage.start:
        checkpoints.ready(run, run.model(stage.start), ranks)
        require_model(run, stage.start)
    if stage.data != TRAIN:
        checkpoints.ready(run, run.questions(stage.data), ranks)
        require_questions(run, stage.data)
    with working(run, name, ranks.first, training=True):
        prepare_torch(run.config)
        KINDS[stage.kind](run, stage, ranks)
    return run.result(stage)
