"""The engine of a finished stage's team, for evaluation and serving."""

from __future__ import annotations

from collections.abc import Mapping

from rolecast.errors import InputError
from rolecast.externals import ExternalConfig
from rolecast.methods.base import Method
from rolecast.rollout.engines.external import OwnEngine
from rolecast.rollout.engines.factory import DiskEngine, disk_engine, model_engine, routed
from rolecast.rollout.render import Renderer
from rolecast.stages.run import Run
from rolecast.stages.team import finished_team, other_base, require_model, start_folder
from rolecast.types import Stage
from rolecast.weights.adapters import is_adapter
from rolecast.weights.canary import canary
from rolecast.weights.models import CPU, read_tokenizer
from rolecast.weights.placed import place_model
from rolecast.weights.team import MERGED


def finished_engine(
    run: Run, method: Method, stage: Stage, version: str, *, lockstep: bool, externals: Mapping[str, ExternalConfig]
) -> tuple[OwnEngine, Renderer]:
    """The engine, not entered yet, and what renders for it. Its user closes it.

    An engine that reads weights itself must give the log-probs that transformers computes of the same files.
    """
    require_model(run, stage.name)
    renderer = Renderer(read_tokenizer(run.model(stage.name)), method.tags)
    disk = disk_engine(run.config, renderer)
    if disk is None:
        _, speakers = finished_team(run, method, stage)
        own = model_engine(run.config, speakers, renderer, version, lockstep)
    else:
        own = _placed(run, method, stage, version, disk)
    return routed(own, renderer, externals), renderer


def _placed(run: Run, method: Method, stage: Stage, version: str, disk: DiskEngine) -> DiskEngine:
    model, start = run.model(stage.name), None
    if other_base(stage, method.spoken):
        if not all(is_adapter(model / MERGED / slot) for slot in stage.merges):
            raise InputError(
                f"{run.config.name}: a frozen role of {stage.name} speaks with what the stage began with, another whole model than its result; "
                f"{run.config.engine.name} plays one, set engine.name to transformers"
            )
        start = start_folder(run, stage.start)
    team, speakers = finished_team(run, method, stage, CPU)
    canaries = {slot: canary(speaker(), team.tokenizer) for slot, speaker in speakers.items()}
    del team, speakers  # they may be as large as what the engine is about to load
    disk.load(place_model(model, method.spoken, version, canaries, start))
    return disk
