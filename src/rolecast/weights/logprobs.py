"""Log-probs and entropies of chosen tokens, from logits that are there for a moment.

With a vocabulary of 150k all logits of a micro-batch at once would be most of a GPU's memory, so they are made in chunks, and again in the
backward pass. What a chunk keeps for it is two numbers a row, which make log Σ exp: then the gradient is one pass over the logits,

    ∂ log π(t) / ∂ logit(v) = ([v = t] − π(v)) / temperature.

A head that nobody trains need not be asked twice: a row's gradient by its hidden state is known up to a factor as soon as its logits are there,
and is kept in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")
LogitsOf = Callable[[Tensor], Tensor]  # hidden states (rows, width) → logits (rows, vocabulary), row by row


@dataclass(frozen=True, slots=True)
class Kernels:
    """What runs over logits (rows, vocabulary) and the token that each row is asked about: `read` once, `slope` for the gradient."""

    read: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor]]
    slope: Callable[[Tensor, Tensor, Tensor, float, Tensor], Tensor]

    @classmethod
    def compiled(cls) -> Self:
        return cls(_of_any_rows(_read), _of_any_rows(_slope))


def _of_any_rows(run: Callable[..., T]) -> Callable[..., T]:
    """Compiled for any number of rows: chunks and packs have them as they come. But for one vocabulary: of one that may change, each element's
    place would be found by a division."""
    compiled = torch.compile(run)

    def call(*given: Tensor | float) -> T:
        for tensor in given:
            if isinstance(tensor, Tensor):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(*given)

    return call


def _read(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each row's token, the row's entropy, and (rows, 2) the largest logit and log Σ exp of what the others are below it;
    float32. Added up, the two would lose what tells a token that is all but certain from one that is."""
    scaled = logits.float() / temperature
    most = scaled.amax(-1, keepdim=True)
    shifted = scaled.sub_(most)
    each = shifted.exp()
    total = each.sum(-1)
    log_total = total.log()
    entropy = log_total - each.mul_(shifted).sum(-1) / total
    chosen = shifted.gather(-1, target[:, None])[:, 0] - log_total
    return chosen, entropy, torch.stack([most[:, 0], log_total], -1)


def _slope(logits: Tensor, norm: Tensor, target: Tensor, temperature: float, gradient: Tensor) -> Tensor:
    """The gradient of the logits, of that of the log-probs. `norm`: as `_read` found it."""
    most, log_total = norm[:, :1], norm[:, 1:]
    rate = (gradient / temperature)[:, None]
    probability = (logits.float() / temperature).sub_(most).sub_(log_total).exp_()
    own = rate * (1 - probability.gather(-1, target[:, None]))  # in float32: of a token that is all but certain the two are all but equal
    return probability.mul_(-rate).to(logits.dtype).scatter_(-1, target[:, None], own.to(logits.dtype))


PLAIN = Kernels(_read, _slope)


class _LogProbs(torch.autograd.Function):
    """`norms`: empty, or what a first pass over the same logits left there; then only the gradient is wanted."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, temperature: float, kernels: Kernels, norms: list[Tensor]
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if norms:
            chosen, entropy = (torch.empty(len(target), dtype=torch.float32, device=logits.device) for _ in range(2))
        else:
            # Detached, since a program is compiled anew for logits that want a gradient.
            chosen, entropy, norm = kernels.read(logits.detach(), target, temperature)
            norms.append(norm)
        ctx.save_for_backward(logits, norms[0], target)
        ctx.mark_non_differentiable(entropy)
        ctx.temperature, ctx.kernels = temperature, kernels
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, norm, target = ctx.saved_tensors
        return ctx.kernels.slope(logits, norm, target, ctx.temperature, gradient), None, None, None, None


class _OfFrozenHead(torch.autograd.Function):
    """Log-probs from hidden states, by a head that gets no gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, target: Tensor, temperature: float, logits_of: LogitsOf, kernels: Kernels
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        with torch.enable_grad():
            states = hidden.detach().requires_grad_()
            logits = logits_of(states)
        made = logits.detach()
        chosen, entropy, norm = kernels.read(made, target, temperature)
        (slope,) = torch.autograd.grad(logits, states, kernels.slope(made, norm, target, temperature, torch.ones_like(chosen)))
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return (slope * gradient[:, None]).to(slope.dtype), None, None, None, None


def of_targets(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy, float32, (rows,), of the token `target[i]` by row `i` of the logits. Entropy carries no gradient."""
    return in_chunks(lambda whole: whole, logits, target, temperature, 1)


def in_chunks(
    logits_of: LogitsOf, hidden: Tensor, target: Tensor, temperature: float, chunks: int, kernels: Kernels = PLAIN, head_trains: bool = True
) -> tuple[Tensor, Tensor]:
    """`of_targets` of the logits of all hidden states, in so many chunks, of which some may be empty. `head_trains`: whether
    anything that `logits_of` computes with does."""
    size = -(-len(hidden) // chunks)
    sizes = [max(0, min(size, len(hidden) - number * size)) for number in range(chunks)]
    # One split, since gradients of slices would be added to zeros of all states, chunk by chunk.
    parts = zip(torch.split(hidden, sizes), torch.split(target, sizes), strict=True)

    def numbers(part: Tensor, of: Tensor, norms: list[Tensor]) -> Any:
        return _LogProbs.apply(logits_of(part), of, temperature, kernels, norms)  # type: ignore[no-untyped-call]

    if not head_trains and hidden.requires_grad and torch.is_grad_enabled():
        found = [_OfFrozenHead.apply(part, of, temperature, logits_of, kernels) for part, of in parts]  # type: ignore[no-untyped-call]
    else:
        if chunks > 1:  # ZeRO-3's weights have another shape between the passes, so shapes are not compared
            numbers = partial(checkpoint, numbers, use_reentrant=False, preserve_rng_state=False, determinism_check="none")
        found = [numbers(part, of, []) for part, of in parts]
    chosen, entropy = (torch.cat(column) for column in zip(*found, strict=True))
    return chosen, entropy
