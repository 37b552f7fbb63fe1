"""`torchrun … sharded.py OUT NAME ZERO OPTIMIZER full|lora|slots|packed`: five updates of a tiny model on fixed rows; rank 0 writes weights and losses.

The last updates are made a second time from a checkpoint (`resumed`), and one more from weights that were put back (`after`).
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch

from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.ranks import join, leave
from rolecast.learner.settings import BackendConfig, OptimizerConfig
from rolecast.learner.tally import Metrics
from rolecast.processes import die_with_parent
from rolecast.types import Example, ImitationTerm, Objective
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting
from tests.tiny import RENDERER, tiny_model, tiny_team

STEPS, SAVED = 5, 3


def rows(seed: int) -> list[Example]:
    """Rows of several lengths, so that micro-batches do not come out even over the ranks."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choice(["mentor", "twin", "of", "is", "The"]) for _ in range(rng.randint(4, 30))) for _ in range(9)]
    encoded = [RENDERER.encode(f" {text}") for text in texts]
    return [Example(ids, (False, *(True,) * (len(ids) - 1)), tag="row") for ids in encoded]


def update(learner: Learner, step: int) -> Metrics:
    """A second slot learns in every other step only, from rows of its own."""
    own = learner.objectives if step % 2 == 0 else learner.objectives[:1]
    return learner.update([learner.cut(o, [], [], [], {}, rows(step + 100 * number)) for number, o in enumerate(own)])


def copied(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.weights().items()}


def main(out: Path, name: str, zero: int, optimizer: str, kind: str) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    ranks = join()
    lr = 0.05 if optimizer == "sgd" else 1e-3
    slots = ("one", "two") if kind == "slots" else ("shared",)
    objectives = [Objective(slot, slot, lr / (1 + number), imitation=ImitationTerm()) for number, slot in enumerate(slots)]
    team = tiny_team(
        Casting(frozenset(slots), slots), scale=2.0, lora=None if kind in ("full", "packed") else LoraConfig(rank=4, alpha=32)
    ).train()
    if kind == "packed":
        team.chunk = 3 * team.base.config.vocab_size  # so that logits are made in many chunks, and a second time in the backward pass
    config = OptimizerConfig(name=optimizer, schedule="linear", warmup=2)
    learner = make_learner(
        objectives, team, config, STEPS + 2, 0, max_tokens=64, packing="prefixes" if kind == "packed" else "off", ranks=ranks, backend=BackendConfig(name=name, zero=zero),
        optimizers={"two": config.model_copy(update={"max_grad_norm": 0.2})},
    )  # fmt: skip
    told = [update(learner, step) for step in range(SAVED)]
    saved = copied(learner)
    learner.save(out.with_suffix(""))
    told += [update(learner, step) for step in range(SAVED, STEPS)]
    weights = copied(learner)
    learner.load_weights(saved)
    learner.load(out.with_suffix(""))
    for step in range(SAVED, STEPS):
        update(learner, step)
    resumed = copied(learner)
    learner.load_weights({name: 0.5 * tensor for name, tensor in weights.items()})  # as a rollback does
    update(learner, 0)
    after = copied(learner)
    if ranks.first:
        base = tiny_model(scale=2.0).state_dict()
        kept = {name.replace(".base_layer", ""): tensor for name, tensor in team.base.state_dict().items()}
        moved = [name for name, tensor in base.items() if zero < 3 and not torch.equal(tensor, kept[name])]
        torch.save({"moved": moved, "told": told, "weights": weights, "resumed": resumed, "after": after}, out)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
