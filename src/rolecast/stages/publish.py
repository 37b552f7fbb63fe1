"""How freshly trained weights start to answer: at once in this process, or as a version that rollout workers fetch."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rolecast.config import RunConfig
from rolecast.coordinator.checks import Rules
from rolecast.coordinator.leases import Handshake
from rolecast.coordinator.process import Child, child_coordinator
from rolecast.errors import InputError
from rolecast.learner.backends import Weights
from rolecast.methods.base import Method
from rolecast.rollout.collect import Collector
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.render import Renderer
from rolecast.rollout.rollouts import Rollouts, local_rollouts
from rolecast.rollout.versions import KIND, write_team
from rolecast.stages.run import Run
from rolecast.stages.team import load_model, open_judge, open_retriever, trained_model
from rolecast.store.artifact import writing
from rolecast.types import Version

KEPT = 2  # published versions that stay in the store: the one that answers, and the one that may still be loading


class Publisher(Protocol):
    rollouts: Rollouts

    def publish(self, step: int, weights: Weights, rollback: int = 0) -> None:
        """`rollback`: how many there were; it tells a step's weights from those that took their place."""
        ...


@contextmanager
def open_publisher(run: Run, method: Method, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Iterator[Publisher]:
    """By `rollouts` of the config: in this process with the model that is trained, or through a coordinator to workers."""
    if run.config.rollouts == "local":
        yield _Local.open(run, method, model, tokenizer)
        return
    if run.store is None:
        raise InputError("rollouts=workers needs a run in a store that workers reach; give the run as s3://bucket/prefix/NAME")
    with child_coordinator(run, handshake(run.config, method, tokenizer), rules(method, model)) as child:
        yield _Remote(run, Rollouts(method, child.control), child, model, tokenizer)


def handshake(config: RunConfig, method: Method, tokenizer: PreTrainedTokenizerBase) -> Handshake:
    return Handshake(version("rolecast"), config.fingerprint, Renderer(tokenizer).fingerprint(), method.prompts_fingerprint())


def rules(method: Method, model: PreTrainedModel) -> Rules:
    """What workers' trajectories are held to."""
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    return Rules(method.name, {name: role.slot for name, role in method.roles.items()}, embedding.num_embeddings)


@dataclass(slots=True)
class _Local:
    run: Run
    rollouts: Rollouts
    model: PreTrainedModel
    shared: bool  # whether `model` is the module that is trained

    @classmethod
    def open(cls, run: Run, method: Method, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> _Local:
        c = run.config
        shared = c.learner.name == "plain" or c.learner.zero < 3  # sharded parameters cannot sample by themselves
        sampled = model if shared else trained_model(c, functools.partial(load_model, run.model("sft"), c.model), None)[0]
        slots = {"shared": sampled}
        if any(role.slot == "frozen" for role in method.roles.values()):
            slots["frozen"] = load_model(run.model("sft"), c.model)[0].requires_grad_(False)
        renderer = Renderer(tokenizer)
        engine = TransformersEngine(slots, renderer, c.engine.max_batch, c.model.max_context)
        collector = Collector(
            method, engine, open_retriever(run), open_judge(), renderer, c.seed, c.model.max_context, c.engine.in_flight, c.lockstep
        )
        return cls(run, local_rollouts(collector, c.name, handshake(c, method, tokenizer)), sampled, shared)

    def publish(self, step: int, weights: Weights, rollback: int = 0) -> None:
        if not self.shared:
            self.model.load_state_dict(weights, strict=self.run.config.model.lora is None)
        self.rollouts.publish(Version(self.run.config.name, 0, step, rollback=rollback))


@dataclass(slots=True)
class _Remote:
    """Versions under `versions/ATTEMPT.STEP` of the run (`….rN` after a rollback), committed before the coordinator names them."""

    run: Run
    rollouts: Rollouts
    child: Child
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    def publish(self, step: int, weights: Weights, rollback: int = 0) -> None:
        assert self.run.store is not None
        base = self.run.model("sft")
        adapters = {"shared": "shared" if self.run.config.model.lora else None}
        named = Version(self.run.config.name, self.child.attempt, step, self.run.key(base), adapters, rollback)
        key = f"versions/{self.child.attempt:04d}.{step:06d}" + (f".r{rollback}" if rollback else "")
        folder = self.run.path / key
        with writing(folder, KIND, {"version": str(named)}) as partial:
            write_team(self.model, self.tokenizer, named, weights, partial, base)
        self.run.publish(folder)
        self.rollouts.publish(named, key)
        shutil.rmtree(folder)
        for old in self.run.store.artifacts("versions")[:-KEPT]:
            self.run.store.delete(old)
