"""Checkpoints of a training stage: the newest complete one is resumed from, older ones are pruned."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rolecast.errors import ArtifactError
from rolecast.formats import CHECKPOINT, KEY
from rolecast.learner.learner import Learner
from rolecast.learner.ranks import Ranks
from rolecast.store.artifact import being_written, provenance, verify, writing
from rolecast.weights.team import Weights

KIND = "checkpoint"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`progress` is what the loop needs beside weights: its step, best score, guard state. `threads`: that each rank computed with."""

    path: Path
    step: int
    progress: dict[str, Any]
    threads: int | None = None

    def restore(self, learner: Learner) -> None:
        """Loads optimizer state; the slots' weights are in `path`, for whoever assembles the team."""
        learner.load(self.path)


def part_of(path: Path, node: int) -> Path:
    """What another node than the first wrote of the checkpoint `path`: its ranks' shards, an artifact of its own."""
    return path if node == 0 else path.with_name(f"{path.name}.node-{node}")


def save(folder: Path, step: int, learner: Learner, progress: Mapping[str, Any], keep: int, weights: Weights | None = None) -> Path:
    """Writes `folder/step-NNNNNN` and deletes all but the newest `keep` checkpoints. Every rank calls it and writes its part.

    `weights`: the learner's, where they were gathered already.
    """
    path = folder / f"step-{step:06d}"
    ranks = learner.ranks
    weights = learner.weights() if weights is None else weights
    with _writing_parts(path, step, ranks) as partial:
        learner.save(partial)
        if ranks.first:
            learner.team.save(learner.slots, partial, weights)
            (partial / "progress.json").write_text(json.dumps(dict(progress), allow_nan=False))
    if ranks.leads_node:
        for old in _paths(folder)[:-keep] if ranks.first else _paths(folder, f"step-*.node-{ranks.node}")[:-keep]:
            shutil.rmtree(old)
    return path


@contextmanager
def _writing_parts(path: Path, step: int, ranks: Ranks) -> Iterator[Path]:
    """As `store.artifact.writing`, on every node: its first rank commits when all ranks everywhere have written their files."""
    part = part_of(path, ranks.node)
    with ExitStack() as stack:
        if ranks.leads_node:
            stack.enter_context(writing(part, KIND, _made(step, ranks)))
        ranks.barrier()
        yield being_written(part)
        ranks.barrier()
    ranks.barrier()


def _made(step: int, ranks: Ranks) -> dict[str, Any]:
    return {KEY: CHECKPOINT.current, "step": step, "world": ranks.world, "threads": torch.get_num_threads()}


def join_parts(path: Path, node: int) -> None:
    """Lays the shards of this node beside what the first node wrote, where the backend looks for them."""
    if node:
        shutil.copytree(part_of(path, node), path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))


def newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that matches its manifest; one that does not is passed over with a warning."""
    for path in reversed(_paths(folder)):
        try:
            verify(path, KIND)
        except ArtifactError as error:
            log.warning("falling back to the checkpoint before: %s", error)
            continue
        return read(path)
    return None


def all_of(folder: Path) -> list[Checkpoint]:
    """Every checkpoint that can be read; a damaged one says nothing, and is passed over."""
    found = []
    for path in _paths(folder):
        try:
            found.append(read(path))
        except ArtifactError as error:
            log.warning("%s", error)
    return found


def read(path: Path) -> Checkpoint:
    """Raises ArtifactError for one that is damaged, FormatError for one that another release wrote: that one is never passed over."""
    made = provenance(path)
    CHECKPOINT.check(made, str(path))
    try:
        progress = dict(json.loads((path / "progress.json").read_text()))
        return Checkpoint(path, int(path.name.removeprefix("step-")), progress, made.get("threads"))
    except (OSError, ValueError, TypeError) as error:
        raise ArtifactError(f"checkpoint {path} is damaged ({type(error).__name__}: {error}); delete it") from error


def _paths(folder: Path, pattern: str = "step-[0-9]*") -> list[Path]:
    """A link is somebody else's folder: it is neither resumed from nor deleted."""
    whole = [path for path in folder.glob(pattern) if path.is_dir() and not path.is_symlink()]
    return sorted(
        path for path in whole if re.fullmatch(r"step-\d+(\.node-\d+)?", path.name) and (".node-" in path.name) == (".node-" in pattern)
    )
