"""A worker's team on another machine than the learner: versions come from the run's store, services from their addresses."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from rolecast.config import RunConfig, read_json_config
from rolecast.coordinator.leases import Handshake, TeamVersion
from rolecast.devices import device
from rolecast.errors import InputError
from rolecast.methods.base import Method
from rolecast.methods.registry import make_method
from rolecast.ports import Judge, Retriever, Store
from rolecast.rollout.collect import Collector
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.render import Renderer
from rolecast.rollout.versions import check_team
from rolecast.store.uri import open_store
from rolecast.wire.coordinator import RunInfo


@dataclass(slots=True)
class RemoteTeam:
    """`load` fetches a version, checks its hashes and its canary, and only then lets it answer."""

    config: RunConfig
    method: Method
    store: Store
    retriever: Retriever
    judge: Judge
    work: Path
    _loaded: TeamVersion | None = None
    _collector: Collector | None = None
    _renderer: Renderer | None = None

    @classmethod
    def of(cls, info: RunInfo, retriever: Retriever, judge: Judge, work: Path) -> RemoteTeam:
        config = read_json_config(info.config, "the coordinator's config")
        if any(role.slot not in ("shared",) for role in make_method(config.method).roles.values()):
            raise InputError("a rollout worker serves the shared slot only so far; set method.condenser=extractive")
        return cls(config, make_method(config.method), open_store(info.store, os.environ), retriever, judge, work)

    @property
    def collector(self) -> Collector:
        assert self._collector is not None, "load a version first"
        return self._collector

    @property
    def handshake(self) -> Handshake:
        assert self._renderer is not None, "load a version first"
        return Handshake(version("rolecast"), self.config.fingerprint, self._renderer.fingerprint(), self.method.prompts_fingerprint())

    def load(self, version: TeamVersion) -> None:
        if version == self._loaded:
            return
        folder = self.store.fetch(version.artifact, self.work / version.artifact)
        model = AutoModelForCausalLM.from_pretrained(folder / "shared", dtype=self.config.model.dtype).to(device())
        tokenizer = AutoTokenizer.from_pretrained(folder / "shared")
        check_team(model, tokenizer, version.name, folder)
        c = self.config
        self._renderer = Renderer(tokenizer)
        engine = TransformersEngine({"shared": model}, self._renderer, c.engine.max_batch, c.model.max_context, version.name)
        if self._collector is None:
            self._collector = Collector(
                self.method, engine, self.retriever, self.judge, self._renderer, c.seed, c.model.max_context, c.engine.in_flight, c.lockstep
            )
        else:
            self._collector.engine, self._collector.renderer = engine, self._renderer
        if self._loaded is not None:
            shutil.rmtree(self.work / self._loaded.artifact, ignore_errors=True)
        self._loaded = version
