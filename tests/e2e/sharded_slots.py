"""`torchrun … sharded_slots.py OUT NAME ZERO SLOTS`: three steps of two slots on a recorded batch; rank 0 writes the weights.

SLOTS: which objectives are trained, for instance plan,answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from rolecast.learner.ranks import join, leave
from rolecast.learner.settings import BackendConfig
from rolecast.learner.step import reinforce
from rolecast.processes import die_with_parent
from tests.two_slots import ANSWERER, PLANNER, learner_of, recorded


def main(out: Path, name: str, zero: int, wanted: list[str]) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    ranks = join()
    objectives = [{"plan": PLANNER, "answer": ANSWERER}[objective] for objective in wanted]
    learner = learner_of(*objectives, ranks=ranks, backend=BackendConfig(name=name, zero=zero), max_tokens=160)
    start = {name: tensor.clone() for name, tensor in learner.weights().items()}
    told = [reinforce(learner, *recorded(step)) for step in range(2)]
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    threads, units = recorded(2)
    told.append(reinforce(learner, threads, [unit for unit in units if unit.objective == wanted[-1]]))  # the other slots rest
    after = {name: tensor.clone() for name, tensor in learner.weights().items()}
    if ranks.first:
        torch.save({"told": told, "start": start, "before": before, "weights": after}, out)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4].split(","))
