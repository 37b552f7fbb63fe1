"""`torchrun … sharded.py OUT NAME ZERO OPTIMIZER full|lora`: five updates of a tiny model on fixed rows; rank 0 writes weights and losses."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch

from rolecast.learner.adapters import add_adapter
from rolecast.learner.batch import sft_batch
from rolecast.learner.learner import make_learner
from rolecast.learner.model import Policy
from rolecast.learner.ranks import join, leave
from rolecast.learner.settings import BackendConfig, LoraConfig, OptimizerConfig
from rolecast.types import Example, Objective
from tests.tiny import RENDERER, tiny_model

STEPS = 5


def rows(seed: int) -> list[Example]:
    """Rows of several lengths, so that micro-batches do not come out even over the ranks."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choice(["mentor", "twin", "of", "is", "The"]) for _ in range(rng.randint(4, 30))) for _ in range(9)]
    encoded = [RENDERER.encode(f" {text}") for text in texts]
    return [Example(ids, (False, *(True,) * (len(ids) - 1)), tag="row") for ids in encoded]


def main(out: Path, name: str, zero: int, optimizer: str, lora: bool) -> None:
    torch.set_num_threads(1)
    ranks = join()
    objective = Objective("o", "shared", "nll", "none", "token", 0.05 if optimizer == "sgd" else 1e-3, minibatches=1)
    model = tiny_model(scale=2.0).train()
    if lora:
        add_adapter(model, "shared", LoraConfig(rank=4, alpha=32), seed=0)
    learner = make_learner(
        objective, Policy(model), OptimizerConfig(name=optimizer, schedule="linear", warmup=2), STEPS, 0,
        max_tokens=64, ranks=ranks, backend=BackendConfig(name=name, zero=zero),
    )  # fmt: skip
    told = [learner.update(sft_batch("shared", rows(step))) for step in range(STEPS)]
    weights = {name: tensor.clone() for name, tensor in learner.backend.weights().items()}
    learner.backend.load_weights({name: 0.5 * tensor for name, tensor in weights.items()})  # as a rollback does
    learner.update(sft_batch("shared", rows(0)))
    after = learner.backend.weights()
    if ranks.first:
        base = tiny_model(scale=2.0).state_dict()
        kept = {name.replace(".base_layer", ""): tensor for name, tensor in model.state_dict().items()}
        moved = [name for name, tensor in base.items() if zero < 3 and not torch.equal(tensor, kept[name])]
        torch.save({"moved": moved, "told": told, "weights": weights, "after": {name: t.clone() for name, t in after.items()}}, out)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5] == "lora")
