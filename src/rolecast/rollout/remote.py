"""A worker's team on another machine than the learner: versions come from the run's store, services from their addresses."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedModel

from rolecast.config import RunConfig, read_json_config
from rolecast.devices import device
from rolecast.judge.client import HttpJudge
from rolecast.leasing import Handshake, TeamVersion
from rolecast.loops import OwnLoop
from rolecast.methods.base import Method
from rolecast.methods.registry import release
from rolecast.ports import EXTERNAL, IndexInfo, Judge, JudgeInfo, Retriever, Store
from rolecast.retriever.client import HttpRetriever
from rolecast.rollout.collect import Collector
from rolecast.rollout.engines.external import OwnEngine
from rolecast.rollout.engines.factory import DiskEngine, disk_engine, model_engine, routed
from rolecast.rollout.engines.settings import VllmConfig
from rolecast.rollout.limits import Limits
from rolecast.rollout.render import Renderer
from rolecast.rollout.waits import Waits
from rolecast.schedule import find
from rolecast.stage_settings import RlConfig
from rolecast.store.uri import open_store
from rolecast.types import Stage
from rolecast.weights.adapters import is_adapter
from rolecast.weights.models import DTYPES, read_model, read_tokenizer
from rolecast.weights.placed import place_version
from rolecast.weights.team import FROZEN, Casting, Team, assemble, slots_in
from rolecast.weights.versions import base_of, check_version
from rolecast.wire.coordinator import RunInfo


def handshake_of(config: RunConfig, method: Method, renderer: Renderer, index: str, judge: str) -> Handshake:
    """What learner and worker must agree on, as either computes it. `index`, `judge`: what the run wants, or the worker has."""
    return Handshake(release(config.method), config.fingerprint, index, judge, renderer.fingerprint(), method.prompts_fingerprint())


def limits_of(config: RunConfig, method: Method) -> Limits:
    """What an episode may take, wherever it is played."""
    return Limits(config.retriever.limit, config.judge.limit, method.config.episode_tokens)


@dataclass(slots=True)
class RemoteTeam:
    """`meet` asks the services what they are. `load` fetches a version, checks its hashes and the canary of every slot, and only
    then lets it answer.

    The base that training started from is fetched once: adapters are loaded over it, and it plays the frozen roles. Where the engine reads
    weights from disk, it is vLLM's own log-probs that are held to the canaries.
    """

    config: RunConfig
    stage: Stage
    method: Method
    store: Store
    retriever: Retriever
    judge: Judge
    work: Path
    waits: Waits = field(default_factory=Waits)
    _index: str = ""
    _judged_by: str = ""
    _loaded: TeamVersion | None = None
    _older: list[TeamVersion] = field(default_factory=list)  # that still speak, and whose files are kept
    _team: Team | None = None
    _disk: DiskEngine | None = None
    _home: OwnLoop = field(default_factory=OwnLoop)  # of the engine and of the episodes
    _collector: Collector | None = None
    _renderer: Renderer | None = None

    @classmethod
    def of(cls, info: RunInfo, retriever_url: str, judge_url: str, work: Path, waits: Waits | None = None) -> RemoteTeam:
        config = read_json_config(info.config, "the coordinator's config")
        stage = find(config.schedule, info.stage)
        retriever = HttpRetriever(retriever_url, patience=config.retriever.patience)
        judge = HttpJudge(judge_url, patience=config.judge.patience)
        return cls(config, stage, config.method_in(stage), open_store(info.store, os.environ), retriever, judge, work, waits or Waits())

    @property
    def collector(self) -> Collector:
        assert self._collector is not None, "load a version first"
        return self._collector

    @property
    def handshake(self) -> Handshake:
        assert self._renderer is not None, "load a version first"
        return handshake_of(self.config, self.method, self._renderer, self._index, self._judged_by)

    @property
    def overlaps(self) -> bool:
        """vLLM keeps the adapters of older versions, which are all that differs between them."""
        trained = self.config.stages.get(self.stage.name)
        stale = isinstance(trained, RlConfig) and trained.staleness > 0 and trained.adapters
        return stale and self.config.model.lora is not None and isinstance(self.config.engine, VllmConfig)

    def meet(self) -> None:
        """Called once, outside an event loop. The coordinator compares what they say with what the run wants."""

        async def asked() -> tuple[IndexInfo, JudgeInfo]:
            return await self.retriever.info(), await self.judge.info()

        index, judge = asyncio.run(asked())
        self._index = EXTERNAL if self.config.retriever.kind == EXTERNAL else str(index)
        self._judged_by = judge.of(self.method.asks())

    def load(self, version: TeamVersion) -> None:
        if version == self._loaded:
            return
        folder = self.store.fetch(version.artifact, self.work / version.artifact)
        before, self._loaded = self._loaded, None  # a slot takes the last one's place before its canary is known
        c, tokenizer = self.config, read_tokenizer(folder)
        self._renderer = Renderer(tokenizer, self.method.tags)
        self._disk = self._disk or disk_engine(c, self._renderer, self._home)
        if self._disk is not None:
            self._disk.load(place_version(folder, self._base(folder), self.method.spoken))
        else:
            if self._team is None:
                self._team = self._assemble(folder)
            else:
                self._team.load(folder, slots_in(folder))
            check_version(self._team, tokenizer, version.name, folder)
        if self._collector is None:
            engine = routed(self._disk or self._models(version), self._renderer, c.externals_of(self.method))
            self._collector = Collector(
                self.method, engine, self.retriever, self.judge, self._renderer, c.seed, c.model.max_context, c.engine.in_flight,
                waits=self.waits, limits=limits_of(c, self.method), lockstep=c.lockstep, runner=self._home.runner,
            )  # fmt: skip
        self._collector.engine.version = version.name
        if before is not None:
            self._older.append(before)
        while len(self._older) > self.overlaps:
            shutil.rmtree(self.work / self._older.pop(0).artifact, ignore_errors=True)
        self._loaded = version

    def close(self) -> None:
        """Gives back what its engine holds, before another team takes its place."""
        if self._disk is not None:
            self._disk.close()
        self._home.runner.close()

    def _models(self, version: TeamVersion) -> OwnEngine:
        assert self._team is not None, "the team's models are loaded before their engine is made"
        speakers = {slot: self._team.speaker(slot) for slot in self.method.spoken}
        assert self._renderer is not None
        return model_engine(self.config, speakers, self._renderer, version.name, self.config.lockstep)

    def _base(self, folder: Path) -> Path | None:
        """What the version's adapters belong to, fetched once; a whole model that is published alone needs none."""
        slots = slots_in(folder)
        if slots and not any(is_adapter(folder / "slots" / slot) for slot in slots) and self.method.spoken <= set(slots):
            return None
        key = base_of(folder)
        return self.store.fetch(key, self.work / key)

    def _assemble(self, folder: Path) -> Team:
        """Over the base that the version names. Whole models that leave no role to the base need none."""
        slots = slots_in(folder)
        whole = not any(is_adapter(folder / "slots" / slot) for slot in slots)
        casting = Casting(self.method.spoken, trained=tuple(slots) if whole else (), frozen=FROZEN in self.method.spoken)
        start = self._base(folder)
        if start is None:
            team = assemble(self._read(folder / "slots" / slots[0]), read_tokenizer(folder), casting, saved=folder)
        else:
            team = assemble(self._read(start), read_tokenizer(folder), casting, start=start, saved=folder)
        team.requires_grad_(False)
        return team

    def _read(self, folder: Path) -> PreTrainedModel:
        return read_model(folder, DTYPES[self.config.model.dtype], device())
