"""Opens a finished run as an agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rolecast.agent.core import Agent
from rolecast.agent.rewriter import rewriter as rewriting
from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.externals import ExternalConfig
from rolecast.ports import Retriever
from rolecast.rollout.engines.settings import EngineConfig
from rolecast.rollout.remote import limits_of
from rolecast.schedule import Schedule, find, trained
from rolecast.stages.alone import retriever_of, searched
from rolecast.stages.models import Speaker, played_method, speaking_engine
from rolecast.stages.playing import finished_engine
from rolecast.stages.run import Run, open_run
from rolecast.stages.services import open_retriever
from rolecast.stages.team import load_questions, prepare_torch
from rolecast.types import Version, endpoint_of, external


def open_agent(
    location: Path | str, stage: str | None = None, retriever: Retriever | None = None, rewriter: str = "",
    externals: Mapping[str, ExternalConfig] | None = None, engine: EngineConfig | None = None,
) -> Agent:  # fmt: skip
    """`location`: a run's folder, or s3://bucket/prefix/NAME. `stage`: whose model answers; by default the last one that the run
    has trained. Without a `retriever` the team searches the run's own index. `rewriter`: the slot that makes one question of several
    turns. `externals`: endpoints besides those of the run's config; of two with one name it is this one that is asked.
    `engine`: what samples, instead of the engine that the run was trained with."""
    run = open_run(location)
    if engine is not None:
        run = replace(run, config=run.config.model_copy(update={"engine": engine}))
    c = run.config
    prepare_torch(c)
    of = find(c.schedule, trained_stage(run, c.schedule, stage))
    method = c.method_in(of).whole()
    known = {**c.externals, **(externals or {})}
    if rewriter and rewriter not in (*method.spoken, *map(external, known)):
        there = ", ".join([*sorted(method.spoken), *map(external, sorted(known))])
        raise InputError(f"{c.name} has no slot {rewriter!r} to rewrite with (--rewriter); there are {there}, and endpoints of --externals")
    asked = method.endpoints | {name for name in [endpoint_of(rewriter)] if name}
    endpoints = {name: known[name] for name in sorted(asked)}
    playing, renderer = finished_engine(run, method, of, str(Version(c.name, 0, 0, of.name)), lockstep=False, externals=endpoints)
    role = rewriting(rewriter) if rewriter else None
    return Agent(
        c.name, method, playing, retriever or open_retriever(run), renderer, c.model.max_context, rewriter=role, limits=limits_of(c, method)
    )


def open_model(speaker: Speaker, config: RunConfig, corpus: Path | None, folder: Path) -> Agent:
    """A team that no run trained: every role speaks with one model. `corpus` is indexed in `folder`, where the method searches it."""
    prepare_torch(config)
    method = played_method(config, speaker)
    run = Run(folder, config)
    retriever = retriever_of(run, method, searched(config, speaker, corpus, corpus or Path("the model")))
    engine, renderer = speaking_engine(config, method, speaker, "ask")
    return Agent(speaker.name or speaker.place, method, engine, retriever, renderer, config.model.max_context)


def proposals(run: Run, count: int = 3) -> list[str]:
    """So many of the run's test questions, one of each number of hops before a second of any."""
    seen: Counter[int] = Counter()
    ranked = []
    for number, question in enumerate(load_questions(run, "test")):
        ranked.append((seen[question.hops], question.hops, number, question.text))
        seen[question.hops] += 1
    return [text for *_, text in sorted(ranked)[:count]]


def trained_stage(run: Run, schedule: Schedule, stage: str | None) -> str:
    """Models are fetched only as far as needed."""
    names = [found.name for found in reversed(trained(schedule))]
    for name in (stage,) if stage else names:
        if run.has(run.model(name)):
            return name
    place, first = run.place, names[-1] if names else ""
    if stage is None:
        raise InputError(f"{place} has no trained model yet; run its {first} stage first")
    there = [name for name in names if run.has(run.model(name))]
    raise InputError(f"{place} has no {stage} model; " + (f"it has {', '.join(there)}" if there else f"run its {first} stage first"))
