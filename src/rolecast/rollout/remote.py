"""A worker's team on another machine than the learner: versions come from the run's store, services from their addresses."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from rolecast.config import RunConfig, read_json_config
from rolecast.coordinator.leases import Handshake, TeamVersion
from rolecast.devices import device
from rolecast.learner.adapters import is_adapter, load_adapter
from rolecast.methods.base import Method
from rolecast.methods.registry import make_method
from rolecast.ports import Judge, Retriever, Store
from rolecast.rollout.collect import Collector
from rolecast.rollout.engines.factory import make_engine
from rolecast.rollout.render import Renderer
from rolecast.rollout.versions import base_of, check_team
from rolecast.store.uri import open_store
from rolecast.types import Slot
from rolecast.wire.coordinator import RunInfo


@dataclass(slots=True)
class RemoteTeam:
    """`load` fetches a version, checks its hashes and its canary, and only then lets it answer.

    The base that training started from is fetched once: adapters are loaded over it, and it plays the frozen roles.
    """

    config: RunConfig
    method: Method
    store: Store
    retriever: Retriever
    judge: Judge
    work: Path
    _loaded: TeamVersion | None = None
    _shared: PreTrainedModel | None = None
    _frozen: PreTrainedModel | None = None
    _collector: Collector | None = None
    _renderer: Renderer | None = None

    @classmethod
    def of(cls, info: RunInfo, retriever: Retriever, judge: Judge, work: Path) -> RemoteTeam:
        config = read_json_config(info.config, "the coordinator's config")
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
        before, self._loaded = self._loaded, None  # an adapter takes the last one's place before its canary is known
        model = self._load_shared(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder / "shared")
        check_team(model, tokenizer, version.name, folder)
        c = self.config
        self._renderer = Renderer(tokenizer, self.method.tags)
        engine = make_engine(c.engine, self._slots(model, folder), self._renderer, c.model.max_context, version.name, c.lockstep)
        if self._collector is None:
            self._collector = Collector(
                self.method, engine, self.retriever, self.judge, self._renderer, c.seed, c.model.max_context, c.engine.in_flight
            )
        else:
            self._collector.engine, self._collector.renderer = engine, self._renderer
        if before is not None:
            shutil.rmtree(self.work / before.artifact, ignore_errors=True)
        self._loaded = version

    def _load_shared(self, folder: Path) -> PreTrainedModel:
        """A whole model anew, or the version's adapter in the place of the last one's."""
        if not is_adapter(folder / "shared"):
            return self._read(folder / "shared")
        if self._shared is None:
            self._shared = self._read(self._base(folder))
        load_adapter(self._shared, folder / "shared", "shared")
        return self._shared

    def _slots(self, shared: PreTrainedModel, folder: Path) -> dict[Slot, PreTrainedModel]:
        slots = {"shared": shared}
        if any(role.slot == "frozen" for role in self.method.roles.values()):
            self._frozen = self._frozen or self._read(self._base(folder)).requires_grad_(False)
            slots["frozen"] = self._frozen
        return slots

    def _base(self, folder: Path) -> Path:
        key = base_of(folder)
        return self.store.fetch(key, self.work / key)

    def _read(self, folder: Path) -> PreTrainedModel:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=self.config.model.dtype).to(device())
        return model
