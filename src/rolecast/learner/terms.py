"""The loss of one micro-batch: the sum of an objective's terms, each Σ weight · ℓ over its own items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rolecast import losses
from rolecast.credit import Floats
from rolecast.learner.batch import Padded, TokenBatch, on_device
from rolecast.learner.packed import Packed
from rolecast.learner.tally import Tally
from rolecast.types import Objective, PolicyTerm


@dataclass(frozen=True, slots=True)
class Slopes:
    """Of units that no micro-batch holds whole: the policy term's value and its derivative by each token's log-prob, per token.

    Both come from a pass without gradient over all of a unit's rows; a second pass, row by row, then has the same gradient.
    """

    loss: Floats
    slope: Floats


def policy_loss(
    o: Objective, batch: TokenBatch, rows: Padded | Packed, output: tuple[Tensor, Tensor], slopes: Slopes | None, tally: Tally,
    at_once: bool = False,
) -> Tensor:  # fmt: skip
    """Everything that trains the policy's slot. `output`: log-prob and entropy of the micro-batch's tokens. `at_once`: they are the
    old log-probs too."""
    logprob, entropy = output
    tags = batch.tag[rows.flat]
    tally.items("entropy", entropy, batch.tags, tags)
    loss = logprob.new_zeros(())
    column = _columns(batch, rows, logprob.device)
    if o.policy is not None:
        if slopes is not None:
            slope, constant = (_floats(a[rows.flat], logprob.device) for a in (slopes.slope, slopes.loss))
            loss = loss + (slope * (logprob - logprob.detach()) + constant).sum()
        else:
            old = logprob.detach() if at_once else column("old_logprob")
            loss = loss + _policy_term(o.policy, batch, rows, logprob, old, tally)
    if o.kl is not None and o.kl.where == "loss":
        kl = losses.kl_k3(logprob, column("ref_logprob"))
        tally.add("kl", kl.mean(), len(kl))
        loss = loss + o.kl.coefficient * (column("kl_weight") * kl).sum()
    if o.imitation is not None:
        tally.items("nll", -logprob, batch.tags, tags, batch.imitation_weight[rows.flat] != 0)
        loss = loss - o.imitation.coefficient * (column("imitation_weight") * logprob).sum()
    return loss


def _policy_term(term: PolicyTerm, batch: TokenBatch, rows: Padded | Packed, logprob: Tensor, old: Tensor, tally: Tally) -> Tensor:
    column, tags, acts = _columns(batch, rows, logprob.device), batch.tag[rows.flat], batch.policy_weight[rows.flat] != 0
    change = losses.log_ratio(logprob, old)
    drift = losses.log_ratio(old, column("sampler_logprob"))
    weight, advantage = column("policy_weight"), column("advantage")
    if term.ratio == "unit":
        _, first, unit = np.unique(batch.unit[rows.flat], return_index=True, return_inverse=True)
        index = on_device(unit, logprob.device)
        change, drift = (losses.unit_mean(items, index, len(first)) for items in (change, drift))
        at = on_device(first, logprob.device)
        weight, advantage, tags, acts = weight[at], advantage[at], tags[first], acts[first]
    found = losses.surrogate(change, advantage, term.clip, term.dual_clip)
    tally.items("ratio", found.ratio, batch.tags, tags, acts)
    tally.items("clip_fraction", found.clipped, batch.tags, tags, acts)
    return (weight * losses.truncated_importance(drift, term.importance_cap) * found.loss).sum()


def slopes_of(term: PolicyTerm, batch: TokenBatch, logprob: Floats, tokens: np.ndarray, tally: Tally) -> Slopes:
    """Of the units of `tokens` (indices into the batch, whole units): value and derivative at the log-probs as they are now."""
    _, first, unit, count = np.unique(batch.unit[tokens], return_index=True, return_inverse=True, return_counts=True)
    index = torch.from_numpy(unit)

    def of_unit(column: Floats) -> Tensor:
        return torch.from_numpy(column[tokens][first]).float()

    def ratios(new: Floats, old: Floats) -> Tensor:
        difference = losses.log_ratio(torch.from_numpy(new[tokens]).float(), torch.from_numpy(old[tokens]).float())
        return losses.unit_mean(difference, index, len(first))

    found = losses.surrogate(ratios(logprob, batch.old_logprob), of_unit(batch.advantage), term.clip, term.dual_clip)
    correction = losses.truncated_importance(ratios(batch.old_logprob, batch.sampler_logprob), term.importance_cap)
    weight = of_unit(batch.policy_weight) * correction
    tally.items("ratio", found.ratio, batch.tags, batch.tag[tokens][first])
    tally.items("clip_fraction", found.clipped, batch.tags, batch.tag[tokens][first])
    slopes = Slopes(np.zeros(len(batch.ids)), np.zeros(len(batch.ids)))
    slopes.loss[tokens] = ((weight * found.loss).numpy() / count)[unit]
    slopes.slope[tokens] = ((weight * found.slope).numpy() / count)[unit]
    return slopes


def value_loss(o: Objective, batch: TokenBatch, rows: Padded | Packed, predicted: Tensor, tally: Tally) -> Tensor:
    assert o.critic is not None
    column = _columns(batch, rows, predicted.device)
    loss = losses.value(predicted, column("value"), column("target"), o.critic.clip)
    n = float(len(predicted))
    tally.add("critic/loss", loss.mean(), n)
    tally.add("critic/explained_variance", losses.explained_variance(predicted.detach(), column("target")), n)
    return (column("value_weight") * loss).sum()


def _columns(batch: TokenBatch, rows: Padded | Packed, device: torch.device) -> Callable[[str], Tensor]:
    def column(name: str) -> Tensor:
        return _floats(getattr(batch, name)[rows.flat], device)

    return column


def _floats(column: Floats, device: torch.device) -> Tensor:
    return on_device(column.astype(np.float32), device)
