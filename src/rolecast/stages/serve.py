"""Opens a finished run as an agent."""

from __future__ import annotations

from pathlib import Path

from rolecast.agent.core import Agent
from rolecast.errors import InputError
from rolecast.methods.registry import make_method
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.render import Renderer
from rolecast.stages.run import Run, open_run
from rolecast.stages.team import load_model, open_retriever, prepare_torch


def open_agent(path: Path, stage: str | None = None) -> Agent:
    """`stage` picks whose model answers; by default the last one that the run has trained."""
    run = open_run(path)
    c = run.config
    prepare_torch(c)
    model, tokenizer = load_model(run.model(_trained_stage(run, stage)), c.model)
    method, renderer = make_method(c.method), Renderer(tokenizer)
    engine = TransformersEngine({role.slot: model for role in method.roles.values()}, renderer, c.engine.max_batch, c.model.max_context)
    return Agent(method, engine, open_retriever(run), renderer, c.model.max_context)


def _trained_stage(run: Run, stage: str | None) -> str:
    trained = [name for name in ("rl", "sft") if run.has(run.model(name))]
    if not trained:
        raise InputError(f"{run.path} has no trained model yet; run its sft stage first")
    if stage is not None and stage not in trained:
        raise InputError(f"{run.path} has no {stage} model; it has {', '.join(trained)}")
    return stage or trained[0]
