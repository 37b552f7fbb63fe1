"""Optimisers, one for each slot: its own rate, schedule, moments and bound of the gradient's norm.

An update that would not be finite is not made: neither weights nor moments nor decay move, and the norm that is returned says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rolecast.learner.muon import Muon
from rolecast.learner.settings import OptimizerConfig


def share_of_peak(config: OptimizerConfig, step: int, total: int) -> float:
    """The schedule, a function of the step's number alone (counted from 0): the rate's share of its peak."""
    c = config
    if step < c.warmup:
        return (step + 1) / c.warmup
    start = max(c.warmup, int(c.decay_from * total))
    if c.schedule == "constant" or step < start:
        return 1.0
    done = min(1.0, (step - start + 1) / max(1, total - start))
    share = 0.5 * (1 + math.cos(math.pi * done)) if c.schedule == "cosine" else 1 - done
    return c.floor + (1 - c.floor) * share


class SlotOptimizer:
    """One or two torch optimisers behind one step.

    Weights of a narrow dtype have masters in float32: an update of lr 2e-6 is smaller than the distance between two bfloat16
    numbers, and would be lost. Gradients of all micro-batches add up in float32; the model computes with the rounded copy.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], config: OptimizerConfig, lr: float, updates: int) -> None:
        self._config, self._lr, self._updates = config, lr, updates
        self._rounded = [(p, _master(p)) for _, p in named if p.dtype != torch.float32]
        masters = {id(p): master for p, master in self._rounded}
        trained = [(name, masters.get(id(p), p)) for name, p in named]
        self.parameters: list[nn.Parameter] = [p for _, p in trained]
        hidden = [p for name, p in trained if config.name == "muon" and p.ndim == 2 and ".layers." in name]
        rest = [p for p in self.parameters if not any(p is h for h in hidden)]
        rate = lr * config.rest if hidden else lr
        self.parts: list[torch.optim.Optimizer] = [elementwise(rest, rate, config)] if rest else []
        if hidden:
            self.parts.append(Muon(hidden, lr, config.momentum))
        self._peaks = [part.param_groups[0]["lr"] for part in self.parts]

    def rate(self, step: int) -> float:
        """Learning rate of the update with this number, counted from 0."""
        return self._lr * share_of_peak(self._config, step, self._updates)

    def step(self, number: int) -> float:
        """Clips, applies and clears the gradients; returns their norm before clipping. One that is not finite is not applied."""
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self._config.max_grad_norm))
        for part, peak in zip(self.parts, self._peaks, strict=True):
            if math.isfinite(norm):
                for group in part.param_groups:
                    group["lr"] = peak * share_of_peak(self._config, number, self._updates)
                part.step()
        self.clear()
        self._round()
        return norm

    def clear(self) -> None:
        """Forgets gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _round(self) -> None:
        if self._rounded:
            parameters, masters = zip(*self._rounded, strict=True)
            torch._foreach_copy_(parameters, masters)

    @torch.no_grad()
    def reset(self) -> None:
        """Forgets moments, after weights were put back."""
        for part in self.parts:
            part.state.clear()
        for parameter, master in self._rounded:
            master.copy_(parameter)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts], "masters": [master.detach() for _, master in self._rounded]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, kept in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(kept)
        for (_, master), kept in zip(self._rounded, state["masters"], strict=True):
            master.copy_(kept)


def _master(parameter: nn.Parameter) -> nn.Parameter:
    """A float32 copy of a parameter, which gets the parameter's gradients as soon as a backward pass has them."""
    master = nn.Parameter(parameter.detach().float().clone())

    def hand_over(_: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
        parameter.grad = None

    parameter.register_post_accumulate_grad_hook(hand_over)  # type: ignore[no-untyped-call]
    return master


def elementwise(parameters: Sequence[nn.Parameter], lr: float, config: OptimizerConfig) -> torch.optim.Optimizer:
    if config.name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay)
    # In one kernel on a GPU; on CPUs as torch does by itself, which lockstep runs depend on.
    fused = all(parameter.is_cuda for parameter in parameters) or None
    return torch.optim.AdamW(parameters, lr=lr, betas=config.betas, weight_decay=config.weight_decay, fused=fused)


class GroupedOptimizer(torch.optim.Optimizer):
    """A torch optimizer whose groups are slots, for an engine that wants one optimizer and hands it shards of gradients.

    A group that is not `active` is left out of a step entirely. Each is clipped to its own norm, over all ranks' shards.
    `norms` holds the norms of the last step, before clipping.
    """

    norms: dict[str, float]
    add_up: Callable[[float], float]  # over the ranks that hold other shards

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        groups = self.param_groups
        self.param_groups = [group for group in groups if group["active"] and group["params"] and self._clip(group)]
        try:
            return super().step(closure)
        finally:
            self.param_groups = groups

    def _clip(self, group: dict[str, Any]) -> bool:
        """Whether the group's update is finite."""
        gradients = [p.grad for p in group["params"] if p.grad is not None]
        norm = math.sqrt(self.add_up(sum(float(g.float().norm()) ** 2 for g in gradients)))
        self.norms[group["slot"]] = norm
        if not math.isfinite(norm):
            return False
        factor = group["max_grad_norm"] / (norm + 1e-6)
        if factor < 1:
            torch._foreach_mul_(gradients, factor)
        return True


class GroupedAdamW(GroupedOptimizer, torch.optim.AdamW):
    pass


class GroupedSGD(GroupedOptimizer, torch.optim.SGD):
    pass


def grouped(
    slots: Iterable[tuple[str, Sequence[nn.Parameter], OptimizerConfig, float]], add_up: Callable[[float], float]
) -> GroupedOptimizer:
    """One optimizer over (slot, parameters, config, rate); all configs name the same algorithm."""
    groups: list[dict[str, Any]] = []
    kinds = set()
    for slot, parameters, c, lr in slots:
        kinds.add(c.name)
        own = {"betas": c.betas} if c.name == "adamw" else {"momentum": c.momentum}
        groups.append(
            {
                "params": list(parameters), "slot": slot, "lr": lr, "weight_decay": c.weight_decay, "max_grad_norm": c.max_grad_norm,
                "active": True, **own,
            }
        )  # fmt: skip
    [kind] = kinds
    optimizer: GroupedOptimizer = GroupedSGD(groups) if kind == "sgd" else GroupedAdamW(groups)
    optimizer.norms, optimizer.add_up = {}, add_up
    return optimizer
