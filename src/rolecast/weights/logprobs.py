"""Log-probs and entropies of chosen tokens, from logits that are there for a moment.

With a vocabulary of 150k all logits of a micro-batch at once would be most of a GPU's memory, so they are made in chunks, and again in the
backward pass. What a chunk keeps for it is two numbers a row, which make log Σ exp: then the gradient is one pass over the logits,

    ∂ log π(t) / ∂ logit(v) = ([v = t] − π(v)) / temperature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class Kernels:
    """What runs over logits (rows, vocabulary): `read` once, `slope` in the backward pass. Of token `i` the row is `index[i]`, ascending,
    and the id `target[i]`; no two tokens have both alike."""

    read: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor]]
    slope: Callable[[Tensor, Tensor, Tensor, Tensor, float, Tensor], Tensor]

    @classmethod
    def compiled(cls) -> Self:
        """For any number of rows and tokens: chunks and packs have them as they come."""
        return cls(torch.compile(_read, dynamic=True), torch.compile(_slope, dynamic=True))


def _read(logits: Tensor, index: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each token, and of each row its entropy, and (2, rows) the largest logit and log Σ exp of what the others are below it;
    float32. Added up, the two would lose what tells a token that is all but certain from one that is."""
    scaled = logits.float() / temperature
    most = scaled.amax(-1, keepdim=True)
    shifted = scaled.sub_(most)
    each = shifted.exp()
    total = each.sum(-1)
    log_total = total.log()
    entropy = log_total - each.mul_(shifted).sum(-1) / total
    return shifted[index, target] - log_total[index], entropy, torch.stack([most[:, 0], log_total])


def _slope(logits: Tensor, norm: Tensor, index: Tensor, target: Tensor, temperature: float, gradient: Tensor) -> Tensor:
    """The gradient of the logits, of that of the log-probs. `norm`: as `_read` found it."""
    most, log_total = norm
    rates = gradient / temperature
    pull = torch.zeros_like(most).index_add(0, index, rates)
    probability = (logits.float() / temperature).sub_(most[:, None]).sub_(log_total[:, None]).exp_()
    own = rates - probability[index, target] * pull[index]  # in float32: of a token that is all but certain the two are all but equal
    slope = probability.mul_(-pull[:, None]).to(logits.dtype)
    slope[index, target] = own.to(logits.dtype)
    return slope


PLAIN = Kernels(_read, _slope)


class _LogProbs(torch.autograd.Function):
    """`norms`: empty, or what a first pass over the same logits left there; then only the gradient is wanted."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, index: Tensor, target: Tensor, temperature: float, kernels: Kernels, norms: list[Tensor]
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if norms:
            chosen, entropy = (torch.empty(len(n), dtype=torch.float32, device=logits.device) for n in (target, logits))
        else:
            chosen, entropy, norm = kernels.read(logits, index, target, temperature)
            norms.append(norm)
        ctx.save_for_backward(logits, norms[0], index, target)
        ctx.mark_non_differentiable(entropy)
        ctx.temperature, ctx.kernels = temperature, kernels
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        logits, norm, index, target = ctx.saved_tensors
        return ctx.kernels.slope(logits, norm, index, target, ctx.temperature, gradient), None, None, None, None, None


def of_targets(logits: Tensor, index: Tensor | None, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy, float32, (trained,), of tokens `target[i]` that the logits with number `index[i]`, ascending, predict.

    Without `index` they are as many. Entropy carries no gradient.
    """
    return in_chunks(lambda whole: whole, logits, index, target, temperature)


def in_chunks(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, index: Tensor | None, target: Tensor, temperature: float, chunks: int = 1,
    kernels: Kernels = PLAIN,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`of_targets` of the logits of all hidden states, in so many chunks, of which some may be empty."""
    index, target, place = _distinct(index, target)
    size = -(-len(hidden) // chunks)
    edges = [*(min(number * size, len(hidden)) for number in range(chunks)), len(hidden)]
    bounds = edges if place is None else torch.searchsorted(index, torch.tensor(edges, device=index.device)).tolist()
    # One split, since gradients of slices would be added to zeros of all states, chunk by chunk.
    parts = torch.split(hidden, [end - start for start, end in pairwise(edges)])

    def numbers(part: Tensor, own: Tensor, of: Tensor, norms: list[Tensor]) -> tuple[Tensor, Tensor]:
        chosen, entropy = _LogProbs.apply(logits_of(part), own, of, temperature, kernels, norms)  # type: ignore[no-untyped-call]
        return chosen, entropy[own]

    if chunks > 1:  # ZeRO-3's weights have another shape between the passes, so shapes are not compared
        numbers = partial(checkpoint, numbers, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
    found = [
        numbers(part, index[first:last] - start, target[first:last], [])
        for part, start, (first, last) in zip(parts, edges[:-1], pairwise(bounds), strict=True)
    ]
    chosen, entropy = (torch.cat(column) for column in zip(*found, strict=True))
    return (chosen, entropy) if place is None else (chosen[place], entropy[place])


def _distinct(index: Tensor | None, target: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same tokens once each, and where among them every one is: members of a group often begin alike."""
    if index is None:
        return torch.arange(len(target), device=target.device), target, None
    both, place = torch.unique((index << 32) | target, return_inverse=True)  # sorted, so rows still ascend
    return both >> 32, both & 0xFFFFFFFF, place
