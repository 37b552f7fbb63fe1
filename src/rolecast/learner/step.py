"""One reinforcement step of one objective: credit → batch → update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from rolecast.credit import Floats, advantages, gae, whiten
from rolecast.errors import EmptyUpdateError
from rolecast.learner.batch import TokenBatch, rl_batch
from rolecast.learner.learner import Learner, Metrics
from rolecast.types import Thread, Unit


def reinforce(learner: Learner, threads: Sequence[Thread], units: Sequence[Unit], on_policy: bool = True) -> Metrics:
    """Trains on `units`; raises `EmptyUpdateError` if none of them carries a gradient."""
    o = learner.objective
    units = [unit for unit in units if unit.objective == o.name]
    lengths = {action.id: len(action.ids) for thread in threads for action in thread.actions}
    if o.estimator == "gae":
        batch = learner.score(rl_batch(o.slot, threads, units))
        estimates = gae(units, o, lengths, batch.by_action("value"), _penalties(learner, batch))
        advantage = {action: adv for action, (adv, _) in estimates.items()}
        batch = batch.with_actions("target", {action: returns for action, (_, returns) in estimates.items()})
        advantage = whiten(advantage) if o.whiten else advantage
    else:
        advantage = advantages(units, o, lengths)
        # A unit without advantage has no gradient, so its tokens need no forward pass, unless a KL term acts on them.
        useful = [unit for unit in units if o.kl or any(np.any(advantage[action]) for action in unit.actions)]
        if not useful or not any(np.any(advantage[action]) for unit in useful for action in unit.actions):
            raise EmptyUpdateError(f"objective {o.name}: no unit has an advantage; every group's rewards are equal")
        batch = learner.score(rl_batch(o.slot, threads, useful))
    mismatch = learner.check_on_policy(batch) if on_policy else learner.sampler_mismatch(batch)
    batch = batch.with_actions("advantage", advantage)
    return {**learner.update(batch, _rollouts(units, batch)), "sampler_mismatch": mismatch}


def _penalties(learner: Learner, batch: TokenBatch) -> Mapping[str, Floats] | None:
    """β · (log π_old − log π_ref) per token, which PPO takes from the reward."""
    o = learner.objective
    if not o.kl or o.kl_in != "reward":
        return None
    old, reference = batch.by_action("old_logprob"), batch.by_action("ref_logprob")
    return {action: o.kl * (old[action] - reference[action]) for action in old}


def _rollouts(units: Sequence[Unit], batch: TokenBatch) -> dict[int, int]:
    """How many rollouts stand behind each group of the batch, those without gradient included."""
    of_group: dict[str, set[str]] = defaultdict(set)
    for unit in units:
        of_group[unit.group].add(unit.rollout)
    numbers, first = np.unique(batch.action[batch.trained], return_index=True)
    number_of = {batch.actions[n]: int(group) for n, group in zip(numbers, batch.group[batch.trained][first], strict=True)}
    return {number_of[action]: len(of_group[unit.group]) for unit in units for action in unit.actions if action in number_of}
