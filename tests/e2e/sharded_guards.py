"""`torchrun … sharded_guards.py OUT NAME ZERO loss|gradient`: updates of two slots, where rank 1 alone finds no number in one of them.

Slot `two` is spoilt in the second and third update. Rank 0 writes what the updates told, the weights after each, what was kept, and what
became of a checkpoint whose moments rank 1 alone holds for infinite.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
from sharded import copied, rows
from torch import Tensor

from rolecast.errors import DivergedError
from rolecast.learner import checkpoint
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.ranks import join, leave
from rolecast.learner.refusals import Refusal
from rolecast.learner.settings import BackendConfig, OptimizerConfig
from rolecast.processes import die_with_parent
from rolecast.types import ImitationTerm, Objective
from rolecast.weights.team import Casting
from tests.tiny import tiny_team

SPOILT = (1, 2)
SLOTS = ("one", "two")


class Spoiling:
    """The backend's forward, with log-probs of slot `two` that are no numbers while `on`; only its loss, or its gradient as well."""

    def __init__(self, learner: Learner, kind: str) -> None:
        self._forward, self._kind, self.on = learner.backend.forward, kind, False

    def __call__(self, slot: str, *arguments: Any) -> tuple[Tensor, Tensor]:
        logprob, entropy = self._forward(slot, *arguments)
        if self.on and slot == "two":
            logprob = logprob + math.inf if self._kind == "loss" else logprob * math.nan
        return logprob, entropy


def spoil(state: Any) -> None:
    """Puts an infinite number into the first tensor of an optimizer's state."""
    moments = [t for of in state.values() for t in of.values() if isinstance(t, Tensor) and t.numel() > 1]
    moments[0].view(-1)[0] = math.inf


def main(out: Path, name: str, zero: int, kind: str) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    ranks = join()
    objectives = [Objective(slot, slot, 1e-3, imitation=ImitationTerm()) for slot in SLOTS]
    team = tiny_team(Casting(frozenset(SLOTS), SLOTS), scale=2.0).train()
    config = OptimizerConfig(name="adamw", schedule="constant")
    learner = make_learner(objectives, team, config, 9, 0, max_tokens=64, ranks=ranks, backend=BackendConfig(name=name, zero=zero))
    kept: list[Refusal] = []
    learner.keep = kept.append
    spoiling = Spoiling(learner, kind)
    learner.backend.forward = spoiling  # type: ignore[method-assign]
    told, weights = [], [copied(learner)]
    for step in range(4):
        spoiling.on = ranks.rank == 1 and step in SPOILT
        told.append(learner.update([learner.cut(o, [], [], [], {}, rows(step + 100 * n)) for n, o in enumerate(objectives)]))
        weights.append(copied(learner))
    optimizers = getattr(learner.backend, "optimizers", None)
    if ranks.rank == 1:
        spoil(optimizers["two"].parts[0].state if optimizers else learner.backend._optimizer.state)  # type: ignore[attr-defined]
    try:
        checkpoint.save(out.with_suffix(""), 4, learner, {}, keep=2)
        saved = "saved"
    except DivergedError as error:
        saved = str(error)
    ranks.barrier()
    if ranks.first:
        found = checkpoint.newest(out.with_suffix("")) is not None
        torch.save({"told": told, "weights": weights, "kept": [str(one) for one in kept], "saved": saved, "found": found}, out)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
