"""Checkpoints of a training stage, here and in the run's store, and how the ranks of a job share them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rolecast.errors import ArtifactError
from rolecast.learner import checkpoint
from rolecast.learner.checkpoint import Checkpoint
from rolecast.learner.learner import Learner
from rolecast.learner.ranks import Ranks
from rolecast.stages.run import Run
from rolecast.stages.working import note_time
from rolecast.threads import cores, given
from rolecast.weights.team import Weights

log = logging.getLogger(__name__)


def save(run: Run, stage: str, step: int, learner: Learner, progress: Mapping[str, Any], keep: int, weights: Weights | None = None) -> None:
    """Every rank calls it, with the learner's weights if it has gathered them. Local first; then every node uploads its part, the first one last, and prunes what is older."""
    folder, ranks = run.stage(stage) / "checkpoints", learner.ranks
    if ranks.first:
        run.require_attempt()  # before another node uploads its part
    path = checkpoint.save(folder, step, learner, progress, keep, weights)
    if ranks.leads_node and not ranks.first:
        run.publish(checkpoint.part_of(path, ranks.node))
    ranks.barrier()
    if ranks.first:
        note_time(run)
    if ranks.first and run.store is not None:
        run.publish(path)
        metrics = run.stage(stage) / "metrics.jsonl"
        if metrics.exists():
            run.record(metrics)
        keys = run.store.artifacts(f"{stage}/checkpoints")
        kept = [key for key in keys if ".node-" not in key][-keep:]
        for key in keys:
            if key.partition(".node-")[0] not in kept:
                run.store.delete(key)
    ranks.barrier()


def newest(run: Run, stage: str, ranks: Ranks) -> Checkpoint | None:
    """The newest sound checkpoint, chosen by rank 0, there on every node. Its metrics come with it."""
    folder = run.stage(stage) / "checkpoints"
    found = _choose(run, stage, folder) if ranks.first else None
    name = ranks.agree(found.path.name if found else None)
    if name is None:
        return None
    if ranks.leads_node:
        run.has(folder / name)
        run.has(checkpoint.part_of(folder / name, ranks.node))
        checkpoint.join_parts(folder / name, ranks.node)
    ranks.barrier()
    found = found or checkpoint.read(folder / name)
    if run.config.lockstep and (why := compute_as(found.threads)) and ranks.first:
        log.warning("%s cannot go on bitwise: %s", found.path, why)
    return found


def compute_as(threads: int | None) -> str:
    """Takes the number of threads that a checkpoint was written with, which decides the order of sums; says why if it cannot."""
    if threads in (None, torch.get_num_threads()):
        return "" if threads else "it does not say with how many threads it was written"
    if given():
        return f"it was written with {threads} threads, and OMP_NUM_THREADS says {torch.get_num_threads()}; unset it"
    if threads > cores():
        return f"it was written with {threads} threads, and there are {cores()} cores here; set OMP_NUM_THREADS to {threads} if it must be"
    torch.set_num_threads(threads)
    return ""


def _choose(run: Run, stage: str, folder: Path) -> Checkpoint | None:
    if run.store is not None:
        run.recall(run.stage(stage) / "metrics.jsonl")
        for key in reversed([key for key in run.store.artifacts(f"{stage}/checkpoints") if ".node-" not in key]):
            try:
                run.store.fetch(key, folder / Path(key).name)
                break
            except ArtifactError as error:
                log.warning("falling back to the checkpoint before: %s", error)
    return checkpoint.newest(folder)


def ready(run: Run, artifact: Path, ranks: Ranks) -> bool:
    """Whether the artifact is committed; then it is on every node. Every rank calls it and gets the same answer."""
    there = ranks.agree(run.has(artifact) if ranks.first else None)
    if there and ranks.leads_node:
        run.has(artifact)
    ranks.barrier()
    return there
