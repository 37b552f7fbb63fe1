"""Losses as pure functions of log-probs. Every loss term of a micro-batch is Σ weight · ℓ; the weights hold the denominator.

All tensors are flat, float32. Each function returns per-item losses and what metrics need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # e^20: what lies beyond says that something is broken, and must not become infinite


@dataclass(frozen=True, slots=True)
class Surrogate:
    """One item per token or per unit. `slope`: the loss's derivative by the item's log-ratio."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor  # bool: a bound is what counts, so the item has no gradient
    slope: Tensor


def log_ratio(logprob: Tensor, old: Tensor) -> Tensor:
    """log π − log π_old, bounded; NaN where one of them is not finite, which a bound would hide."""
    difference = logprob - old
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).where(difference.isfinite(), torch.nan)


def unit_mean(items: Tensor, unit: Tensor, units: int) -> Tensor:
    """Mean of each unit's items. `unit` (items,) int64 in [0, units). Of log-ratios: one log-ratio per unit (DECOR eq. 4-5; GSPO)."""
    none = torch.zeros(units, device=items.device)
    count, total = none.index_add(0, unit, torch.ones_like(items)), none.index_add(0, unit, items)
    return total / count.clamp(min=1)


def surrogate(log_ratios: Tensor, advantage: Tensor, clip: tuple[float, float], dual_clip: float | None = None) -> Surrogate:
    """−min(ρA, clip(ρ)A) (Schulman et al. 2017, eq. 7; asymmetric clip: DAPO), for A < 0 at most −dual_clip · A (Ye et al. 2020)."""
    ratio = torch.exp(log_ratios)
    plain = ratio * advantage
    bounded = ratio.clamp(1 - clip[0], 1 + clip[1]) * advantage
    gained = torch.minimum(plain, bounded)
    clipped = bounded < plain
    if dual_clip is not None:
        floor = dual_clip * advantage
        low = (advantage < 0) & (gained < floor)
        gained, clipped = torch.where(low, floor, gained), clipped | low
    slope = torch.where(clipped, torch.zeros_like(plain), -plain)
    return Surrogate(-gained, ratio.detach(), clipped.detach(), slope.detach())


def truncated_importance(log_ratios: Tensor, cap: float) -> Tensor:
    """min(π_old / π_sampler, cap), from log π_old − log π_sampler: corrects for an engine that samples from slightly other numbers."""
    return torch.exp(log_ratios).clamp(max=cap)


def kl_k3(logprob: Tensor, reference: Tensor) -> Tensor:
    """Unbiased, non-negative estimate of KL(π ‖ π_ref) per token: r − 1 − log r with r = π_ref / π (Schulman 2020)."""
    ratio = log_ratio(reference, logprob)
    return torch.expm1(ratio) - ratio  # exp(x) − 1 − x would round below 0 for close policies


def value(predicted: Tensor, old: Tensor, target: Tensor, clip: float) -> Tensor:
    """½ max((V − R)², (clip(V, V_old ± c) − R)²), PPO's clipped value loss."""
    bounded = old + (predicted - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((predicted - target) ** 2, (bounded - target) ** 2)


def explained_variance(predicted: Tensor, target: Tensor) -> Tensor:
    """1 − Var(target − predicted) / Var(target); 0 when the target does not vary."""
    variance = target.var(unbiased=False)
    return torch.where(variance == 0, 0.0, 1 - (target - predicted).var(unbiased=False) / variance)
