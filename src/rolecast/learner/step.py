"""One reinforcement step: credit → batch → update, for every objective of a stage."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rolecast.credit import Floats, advantages, gae, whiten
from rolecast.errors import EmptyUpdateError, RatioGateError
from rolecast.learner.batch import TokenBatch, action_lengths
from rolecast.learner.cut import Cut
from rolecast.learner.learner import Learner
from rolecast.learner.refusals import unsound
from rolecast.learner.tally import Metrics
from rolecast.types import Example, Objective, Thread, Unit

log = logging.getLogger(__name__)
TAIL = 0.999  # quantile that the gate looks at beside the mean
# How much larger than the mean's bound it may be: some tokens are rare, and their log-probs are far down. SmolLM2-135M, sampled by vLLM in
# bfloat16 and trained in float32, has 0.007 on average and 0.57 there.
TAIL_FACTOR = 20.0
CLIPPED = 0.01  # share of the first minibatch's items above which something is wrong: nothing has moved yet


@dataclass(frozen=True, slots=True)
class Mismatch:
    """|π_old / π_sampler − 1| over trained tokens. The two are the same weights' where a batch is on-policy."""

    mean: float
    tail: float
    largest: float

    @classmethod
    def of(cls, batch: TokenBatch, stale: Collection[str] = (), old: bool = False) -> Mismatch:
        """Of actions that are not `stale`, or, if `old`, of those that are."""
        is_stale = np.array([*(action in stale for action in batch.actions), False], dtype=bool)[batch.action]  # -1 finds the last
        difference = (batch.old_logprob - batch.sampler_logprob)[(batch.policy_weight != 0) & (is_stale == old)]
        if not len(difference):
            return cls(0.0, 0.0, 0.0)
        off = np.abs(np.expm1(np.minimum(difference, 50.0)))
        return cls(float(off.mean()), float(np.quantile(off, TAIL)), float(off.max()))


def reinforce(
    learner: Learner, threads: Sequence[Thread], units: Sequence[Unit], examples: Sequence[Example] = (), *, gate: float | None = None,
    stale: Collection[str] = (),
) -> Metrics:  # fmt: skip
    """Trains on `units` and `examples`. All objectives are scored with the weights before the step, so their order is nothing.

    `gate`: the bound of the mean mismatch of freshly sampled tokens; None where they are not on-policy. `stale`: ids of actions that earlier
    weights sampled, which no gate is for: truncated importance corrects each by the log-probs of those who sampled it. Raises `RatioGateError`
    beyond it, `EmptyUpdateError` if nothing carries a gradient. An objective whose log-probs or values are not finite is left out.
    """
    lengths = action_lengths(threads)
    cuts = []
    numbers: Metrics = {}

    def check(found: Cut) -> None:
        told = _check(found.objective, found.batch, gate, stale)
        numbers.update({_prefix(learner, found.objective) + name: value for name, value in told.items()})

    for objective in learner.objectives:
        own = [unit for unit in units if unit.objective == objective.name]
        shown = [example for example in examples if example.objective == objective.name]
        found = _scored(learner, objective, threads, own, shown, lengths)
        if found is None:
            continue
        if reason := unsound(found.batch):
            learner.refuse(objective.slot, reason, [found])
            numbers[f"{_prefix(learner, objective)}refused"] = 1.0
            continue
        if not found.at_once:
            check(found)
        cuts.append(found)
    if numbers and not cuts:
        return numbers  # all of the step was refused
    if not cuts:
        raise EmptyUpdateError(
            f"objective {', '.join(o.name for o in learner.objectives)}: no unit has an advantage; every group's rewards are equal"
        )
    metrics = learner.update(cuts, check)
    for name, share in metrics.items():
        if name.endswith("clip_fraction/first") and share > CLIPPED:
            log.warning("%s is %.1f %% before anything has moved: scoring and update do not compute alike", name, 100 * share)
    return {**metrics, **numbers}


def _prefix(learner: Learner, o: Objective) -> str:
    return f"{o.name}/" if len(learner.objectives) > 1 else ""


def _scored(
    learner: Learner,
    o: Objective,
    threads: Sequence[Thread],
    units: Sequence[Unit],
    examples: Sequence[Example],
    lengths: Mapping[str, int],
) -> Cut | None:
    """The objective's batch with advantages and log-probs; None where it has nothing to learn from."""
    if o.estimator == "gae":
        if not units and not examples:
            return None
        found = learner.score(learner.cut(o, threads, units, units, lengths, examples), sparing=True)
        return replace(found, batch=_estimated(o, found.batch, units, lengths)) if units else found
    advantage = advantages(units, o, lengths)
    # A unit without advantage has no gradient, so its tokens need no forward pass, unless a KL term acts on them.
    anchored = o.kl is not None and o.kl.coefficient > 0
    useful = [unit for unit in units if anchored or any(np.any(advantage[action]) for action in unit.actions)]
    if not examples and not any(np.any(advantage[action]) for unit in useful for action in unit.actions):
        return None
    found = learner.score(learner.cut(o, threads, useful, units, lengths, examples), sparing=True)
    return replace(found, batch=_filled(found.batch, "advantage", advantage))


def _estimated(o: Objective, batch: TokenBatch, units: Sequence[Unit], lengths: Mapping[str, int]) -> TokenBatch:
    """Advantages and the critic's targets, from values and penalties."""
    estimates = gae(units, o, lengths, batch.by_action("value"), _penalties(o, batch))
    advantage = {action: adv for action, (adv, _) in estimates.items()}
    batch = _filled(batch, "target", {action: returns for action, (_, returns) in estimates.items()})
    return _filled(batch, "advantage", whiten(advantage) if o.whiten else advantage)


def _filled(batch: TokenBatch, name: str, numbers: Mapping[str, Floats]) -> TokenBatch:
    """Tokens of examples keep 0: no reward stands behind them."""
    zeros = {action: column for action, column in batch.by_action(name).items() if action not in numbers}
    return batch.with_actions(name, {**zeros, **numbers})


def _penalties(o: Objective, batch: TokenBatch) -> Mapping[str, Floats] | None:
    """β · (log π_old − log π_ref) per token, which PPO takes from the reward."""
    if o.kl is None or o.kl.where != "reward":
        return None
    old, reference = batch.by_action("old_logprob"), batch.by_action("ref_logprob")
    return {action: o.kl.coefficient * (old[action] - reference[action]) for action in old}


def _check(o: Objective, batch: TokenBatch, gate: float | None, stale: Collection[str] = ()) -> Metrics:
    """Stops a run whose trainer and sampler disagree about the same weights. A number that is none is a disagreement."""
    found = Mismatch.of(batch, stale)
    if gate is not None and not (found.mean <= gate and found.tail <= TAIL_FACTOR * gate):
        raise RatioGateError(
            f"objective {o.name}: trainer and sampler disagree on freshly sampled tokens, |ratio - 1| = {found.mean:.2e} on average, "
            f"{found.tail:.2e} at its {TAIL:.1%} quantile, allowed are {gate:.0e} and {TAIL_FACTOR * gate:.0e}; the engine does not run the "
            "trainer's weights, or its precision needs a wider gate"
        )
    numbers = {"sampler_mismatch": found.mean, "sampler_mismatch/tail": found.tail, "sampler_mismatch/max": found.largest}
    if stale:
        numbers |= {
            "stale": float(np.mean([action in stale for action in batch.actions])),
            "stale/shift": Mismatch.of(batch, stale, old=True).mean,
        }
    return numbers
