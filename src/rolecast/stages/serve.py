"""Opens a finished run as an agent."""

from __future__ import annotations

from pathlib import Path

from rolecast.agent.core import Agent
from rolecast.errors import InputError
from rolecast.methods.registry import make_method
from rolecast.ports import Retriever
from rolecast.rollout.engines.factory import make_engine
from rolecast.rollout.render import Renderer
from rolecast.stages.run import Run, open_run
from rolecast.stages.team import load_model, open_retriever, prepare_torch
from rolecast.store.artifact import verify


def open_agent(location: Path | str, stage: str | None = None, retriever: Retriever | None = None) -> Agent:
    """`location`: a run's folder, or s3://bucket/prefix/NAME. `stage`: whose model answers; by default the last one that the run
    has trained. Without a `retriever` the team searches the run's own index."""
    run = open_run(location)
    c = run.config
    prepare_torch(c)
    path = run.model(_trained_stage(run, stage))
    verify(path, "model")
    model, tokenizer = load_model(path, c.model)
    method = make_method(c.method)
    renderer = Renderer(tokenizer, method.tags)
    engine = make_engine(c.engine, {role.slot: model for role in method.roles.values()}, renderer, c.model.max_context)
    return Agent(c.name, method, engine, retriever or open_retriever(run), renderer, c.model.max_context)


def _trained_stage(run: Run, stage: str | None) -> str:
    """Models are fetched only as far as needed."""
    for name in (stage,) if stage else ("rl", "sft"):
        if run.has(run.model(name)):
            return name
    place = run.location or run.path
    if stage is None:
        raise InputError(f"{place} has no trained model yet; run its sft stage first")
    trained = [name for name in ("rl", "sft") if run.has(run.model(name))]
    raise InputError(f"{place} has no {stage} model; " + (f"it has {', '.join(trained)}" if trained else "run its sft stage first"))
