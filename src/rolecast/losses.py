"""Losses as pure functions of log-probs. Every loss of a micro-batch is Σ weight · ℓ; the weights hold the denominator.

All tensors are flat over action tokens, float32. Each function returns per-item losses and what metrics need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Surrogate:
    """`loss`, `ratio` and `clipped` have one item per token (ppo) or per unit (gspo)."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor  # bool: the clipped branch is the one that counts, so the item has no gradient


def ppo(logprob: Tensor, old: Tensor, advantage: Tensor, clip: tuple[float, float]) -> Surrogate:
    """Token-level clipped surrogate, −min(ρA, clip(ρ)A) (Schulman et al. 2017, eq. 7; asymmetric clip: DAPO)."""
    return _clipped(torch.exp(logprob - old), advantage, clip)


def gspo(logprob: Tensor, old: Tensor, advantage: Tensor, unit: Tensor, units: int, clip: tuple[float, float]) -> Surrogate:
    """Sequence-level clipped surrogate: one ratio per unit, the exponential of its mean log-ratio (DECOR eq. 4-5; GSPO).

    `unit` (tokens,) int64 in [0, units) says to which unit a token belongs; `advantage` is (units,).
    """
    count = torch.zeros(units).index_add_(0, unit.cpu(), torch.ones(len(unit))).to(logprob.device)
    total = torch.zeros(units, device=logprob.device).index_add(0, unit, logprob - old)
    return _clipped(torch.exp(total / count.clamp(min=1)), advantage, clip)


def _clipped(ratio: Tensor, advantage: Tensor, clip: tuple[float, float]) -> Surrogate:
    plain = ratio * advantage
    bounded = ratio.clamp(1 - clip[0], 1 + clip[1]) * advantage
    return Surrogate(-torch.minimum(plain, bounded), ratio.detach(), (bounded < plain).detach())


def truncated_importance(old: Tensor, sampler: Tensor, cap: float) -> Tensor:
    """min(π_old / π_sampler, cap): corrects for an engine that samples from slightly other numbers than the trainer's."""
    return torch.exp(old - sampler).clamp(max=cap)


def kl_k3(logprob: Tensor, reference: Tensor) -> Tensor:
    """Unbiased, non-negative estimate of KL(π ‖ π_ref) per token: r − 1 − log r with r = π_ref / π (Schulman 2020)."""
    log_ratio = reference - logprob
    return torch.expm1(log_ratio) - log_ratio  # exp(x) − 1 − x would round below 0 for close policies


def value(predicted: Tensor, old: Tensor, target: Tensor, clip: float) -> Surrogate:
    """½ max((V − R)², (clip(V, V_old ± c) − R)²), PPO's clipped value loss."""
    bounded = old + (predicted - old).clamp(-clip, clip)
    plain, limited = (predicted - target) ** 2, (bounded - target) ** 2
    return Surrogate(0.5 * torch.maximum(plain, limited), predicted.detach(), (limited > plain).detach())


def explained_variance(predicted: Tensor, target: Tensor) -> float:
    """1 − Var(target − predicted) / Var(target); 0 when the target does not vary."""
    variance = target.var(unbiased=False)
    return 0.0 if variance == 0 else float(1 - (target - predicted).var(unbiased=False) / variance)
