"""Two slots with an objective each, PPO with a critic and a group-relative one, and a batch that was recorded for them."""

from __future__ import annotations

import random
from collections.abc import Mapping

from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.learner.settings import PLAIN, BackendConfig, OptimizerConfig
from rolecast.types import Action, KlTerm, Objective, Observation, PolicyTerm, Thread, Unit, ValueTerm
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting
from tests.tiny import tiny_team

PLANNER = Objective("plan", "planner", 3e-3, "gae", PolicyTerm(), KlTerm(0.05, "reward"), critic=ValueTerm("critic", 1e-2), minibatches=2)
ANSWERER = Objective("answer", "answerer", 1e-3, "group", PolicyTerm("unit"), KlTerm(0.1), minibatches=3, epochs=2)
LORA = LoraConfig(rank=4, alpha=32)
OPTIMIZER = OptimizerConfig(weight_decay=0.1, max_grad_norm=0.3)


def recorded(seed: int = 0) -> tuple[list[Thread], list[Unit]]:
    """A batch of four questions with three rollouts each: a planner's thread of two turns and an answerer's of one."""
    rng = random.Random(seed)
    threads, units = [], []
    for question in range(4):
        for member in range(3):
            name = f"{question}.{member}"
            for role, turns in (("planner", 2), ("answerer", 1)):
                thread = Thread(f"{name}/{role}", role, role)
                for turn in range(turns):
                    thread.turns.append(Observation(tuple(rng.randrange(5, 90) for _ in range(rng.randint(3, 9))), ""))
                    ids = tuple(rng.randrange(5, 90) for _ in range(rng.randint(2, 6)))
                    thread.turns.append(Action(f"{thread.id}/{turn}", ids, (-6.6,) * len(ids), "v", "", "stop"))
                threads.append(thread)
                actions = tuple(action.id for action in thread.actions)
                objective = {"planner": "plan", "answerer": "answer"}[role]
                units.append(
                    Unit(
                        thread.id, actions, rng.random(), objective, f"q{question}", thread.id, tag=role, group=f"q{question}", rollout=name
                    )
                )
    return threads, units


def learner_of(
    *objectives: Objective, lora: LoraConfig | None = LORA, optimizers: Mapping[str, OptimizerConfig] | None = None, ranks: Ranks = ALONE,
    backend: BackendConfig = PLAIN, max_tokens: int = 8192,
) -> Learner:  # fmt: skip
    """Over a tiny base; both roles speak, those of `objectives` are trained."""
    critics = ("critic",) if any(o.critic for o in objectives) else ()
    slots = tuple(sorted(o.slot for o in objectives))
    casting = Casting(frozenset({"planner", "answerer"}), slots, critics, frozen=True)
    return make_learner(
        objectives,
        tiny_team(casting, lora=lora, scale=2.0),
        OPTIMIZER,
        10,
        0,
        optimizers=optimizers,
        ranks=ranks,
        backend=backend,
        max_tokens=max_tokens,
    )
