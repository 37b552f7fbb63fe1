"""Checkpoints of a training stage: the newest complete one is resumed from, older ones are pruned."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rolecast.errors import ArtifactError
from rolecast.learner.learner import Learner
from rolecast.store.artifact import verify, writing

KIND = "checkpoint"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`progress` is what the loop needs beside weights: its step, best score, guard state."""

    path: Path
    step: int
    progress: dict[str, Any]

    @property
    def model(self) -> Path:
        return self.path / "model"

    def restore(self, learner: Learner) -> None:
        """Loads optimizer state; the policy's weights are loaded by whoever made the model from `self.model`."""
        learner.load_state_dict(torch.load(self.path / "learner.pt", weights_only=True))


def save(folder: Path, step: int, learner: Learner, tokenizer: PreTrainedTokenizerBase, progress: Mapping[str, Any], keep: int) -> Path:
    """Writes `folder/step-NNNNNN` and deletes all but the newest `keep` checkpoints."""
    path = folder / f"step-{step:06d}"
    with writing(path, KIND, {"step": step}) as partial:
        save_model(learner.policy.model, tokenizer, partial / "model")
        torch.save(learner.state_dict(), partial / "learner.pt")
        (partial / "progress.json").write_text(json.dumps(dict(progress)))
    for old in _paths(folder)[:-keep]:
        shutil.rmtree(old)
    return path


def newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that matches its manifest; one that does not is passed over with a warning."""
    for path in reversed(_paths(folder)):
        try:
            verify(path, KIND)
        except ArtifactError as error:
            log.warning("falling back to the checkpoint before: %s", error)
            continue
        return Checkpoint(path, int(path.name.removeprefix("step-")), json.loads((path / "progress.json").read_text()))
    return None


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())
