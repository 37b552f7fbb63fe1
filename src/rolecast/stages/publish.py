"""How freshly trained weights start to answer: at once in this process, or as a version that rollout workers fetch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from rolecast.coordinator.checks import Rules
from rolecast.coordinator.leases import Coordinator
from rolecast.coordinator.process import Child, Served, child_coordinator
from rolecast.errors import InputError
from rolecast.leasing import Handshake
from rolecast.loops import OwnLoop
from rolecast.methods.base import Method
from rolecast.rollout.collect import Collector
from rolecast.rollout.engines.factory import DiskEngine, disk_engine, model_engine, routed
from rolecast.rollout.remote import handshake_of, limits_of
from rolecast.rollout.render import Renderer
from rolecast.rollout.rollouts import LocalTeam, Rollouts
from rolecast.rollout.worker import Worker
from rolecast.scratch import scratch_in
from rolecast.stage_settings import PlayedConfig, RlConfig
from rolecast.stages.environment import environment_of
from rolecast.stages.run import Run
from rolecast.stages.services import open_judge, open_retriever
from rolecast.stages.team import start_folder, training_team
from rolecast.store.artifact import writing
from rolecast.types import Slot, Stage, Version
from rolecast.weights.models import CPU
from rolecast.weights.placed import place_version
from rolecast.weights.team import Team, Weights
from rolecast.weights.versions import KIND, write_version

KEPT = 2  # published versions that stay in the store: the one that answers, and the one that may still be loading


class Publisher(Protocol):
    rollouts: Rollouts

    def publish(self, step: int, weights: Weights, rollback: int = 0) -> None:
        """`rollback`: how many there were; it tells a step's weights from those that took their place."""
        ...


@contextmanager
def open_publisher(run: Run, method: Method, stage: Stage, team: Team) -> Iterator[Publisher]:
    """By `rollouts` of the config: in this process with the stage's own team, or through a coordinator to workers."""
    if run.config.rollouts == "local":
        local = _Local.open(run, method, stage, team)
        try:
            yield local
        finally:
            local.close()
        return
    if run.store is None:
        raise InputError("rollouts=workers needs a run in a store that workers reach; give the run as s3://bucket/prefix/NAME")
    if not stage.start:
        _publish_base(run)
    about = environment_of(run)
    handshake = handshake_of(run.config, method, Renderer(team.tokenizer), about.index, about.judged_by)
    with child_coordinator(served(run, stage), handshake, rules(method, team)) as child:
        yield _Remote(run, stage, Rollouts(method, child.control), child, team, training_team(run, method, stage, None, CPU))


def _publish_base(run: Run) -> None:
    """Makes the run's own start model an artifact that workers can fetch: the learner makes it, or reads it from a disk of its own."""
    run.publish(start_folder(run, ""))


def served(run: Run, stage: Stage) -> Served:
    c = run.config.stages[stage.name]
    assert isinstance(c, PlayedConfig), f"nothing is played in stage {stage.name}"
    return Served(
        run.config.name, run.attempt, run.config.model_dump_json(), stage.name, run.location, c.lease_seconds, c.lease_tries,
        _staleness(run, stage),
    )  # fmt: skip


def _staleness(run: Run, stage: Stage) -> int:
    c = run.config.stages[stage.name]
    return c.staleness if isinstance(c, RlConfig) else 0


def rules(method: Method, team: Team) -> Rules:
    """What workers' trajectories are held to."""
    embedding = team.base.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    return Rules(method.name, {name: role.slot for name, role in method.roles.items()}, embedding.num_embeddings)


def local_rollouts(collector: Collector, run: str, handshake: Handshake, staleness: int = 0) -> Rollouts:
    """Coordinator and worker in this process. A worker that fails here fails the run, so a group is leased once."""
    coordinator = Coordinator(run, 0, handshake, lease_seconds=float("inf"), tries=1, staleness=staleness)
    worker = Worker("local", coordinator, LocalTeam(collector, handshake), capacity=10**9, remote=False)
    rollouts = Rollouts(collector.method, coordinator, worker.work, waits=collector.waits)
    worker.submitted = rollouts.settle
    return rollouts


@dataclass(slots=True)
class _Local:
    run: Run
    stage: Stage
    rollouts: Rollouts
    collector: Collector
    team: Team
    shared: bool  # whether `team` is the stage's own, and not a copy
    disk: DiskEngine | None  # an engine that is given versions as files
    spoken: frozenset[Slot]

    @classmethod
    def open(cls, run: Run, method: Method, stage: Stage, team: Team) -> _Local:
        c = run.config
        shared = not stage.trains or c.learner.name == "plain" or c.learner.zero < 3  # sharded parameters cannot sample by themselves
        sampled = team if shared else training_team(run, method, stage, None)
        renderer = Renderer(team.tokenizer, method.tags)
        home = OwnLoop()
        disk = disk_engine(c, renderer, home)
        speakers = {slot: sampled.speaker(slot) for slot in method.spoken}
        own = disk or model_engine(c, speakers, renderer, lockstep=c.lockstep)
        engine = routed(own, renderer, c.externals_of(method))
        collector = Collector(
            method, engine, open_retriever(run), open_judge(run), renderer, c.seed, c.model.max_context, c.engine.in_flight,
            limits=limits_of(c, method), lockstep=c.lockstep, runner=home.runner,
        )  # fmt: skip
        handshake = handshake_of(c, method, renderer, "", "")  # whoever plays in this process has been looked at
        rollouts = local_rollouts(collector, c.name, handshake, _staleness(run, stage))
        return cls(run, stage, rollouts, collector, sampled, shared, disk, method.spoken)

    def publish(self, step: int, weights: Weights, rollback: int = 0) -> None:
        if not self.shared:
            self.team.load_state_dict(weights, strict=False)
        version = Version(self.run.config.name, 0, step, rollback=rollback)
        if self.disk is not None:
            self._place(self.disk, version, weights)
        self.rollouts.publish(version)

    def _place(self, disk: DiskEngine, version: Version, weights: Weights) -> None:
        """Written, and read by the engine, which holds what it reads from then on."""
        with scratch_in(self.run.path) as folder:
            write_version(self.team, self.stage.trained, version, weights, folder)
            disk.load(place_version(folder, self._base(), self.spoken))

    def _base(self) -> Path | None:
        """What adapters belong to; a slot that is trained whole takes its place."""
        if self.stage.trained and "adapter" not in self.team.place.values():
            return None
        return start_folder(self.run, self.stage.start)

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()  # whose front end lives in the collector's loop
        self.collector.close()


@dataclass(slots=True)
class _Remote:
    """Versions under `versions/STAGE/ATTEMPT.STEP` of the run (`….rN` after a rollback), committed before the coordinator names them."""

    run: Run
    stage: Stage
    rollouts: Rollouts
    child: Child
    team: Team
    mirror: Team

    def publish(self, step: int, weights: Weights, rollback: int = 0) -> None:
        assert self.run.store is not None
        base = self.run.key(self.run.model(self.stage.start) if self.stage.start else self.run.base)
        slots = self.stage.trained  # what workers need of what is trained: not the critics
        adapters = {slot: slot if self.team.place[slot] == "adapter" else None for slot in slots}
        named = Version(self.run.config.name, self.child.attempt, step, base, adapters, rollback)
        key = f"versions/{self.stage.name}/{self.child.attempt:04d}.{step:06d}" + (f".r{rollback}" if rollback else "")
        folder = self.run.path / key
        with writing(folder, KIND, {"version": str(named)}) as partial:
            write_version(self.team, slots, named, weights, partial, self.mirror)
        self.run.publish(folder)
        self.rollouts.publish(named, key)
        shutil.rmtree(folder)
        for old in self.run.store.artifacts(f"versions/{self.stage.name}")[:-KEPT]:
            self.run.store.delete(old)
