"""Optimisers and learning-rate schedules."""

from __future__ import annotations

import math
from typing import Any

import torch

from rolecast.learner.muon import Muon
from rolecast.learner.settings import OptimizerConfig


class Optimizer:
    """One or two torch optimisers behind one step, with a schedule that is a function of the step number alone."""

    def __init__(self, module: torch.nn.Module, config: OptimizerConfig, lr: float, total_steps: int) -> None:
        self._config = config
        self._lr = lr
        self._total = total_steps
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.parameters = [p for _, p in trained]
        hidden = [p for name, p in trained if config.name == "muon" and p.ndim == 2 and ".layers." in name]
        rest = [p for p in self.parameters if not any(p is h for h in hidden)]
        rate = lr * config.rest if hidden else lr
        self.parts: list[torch.optim.Optimizer] = [_elementwise(rest, rate, config)] if rest else []
        if hidden:
            self.parts.append(Muon(hidden, lr, config.momentum))
        self._peaks = [part.param_groups[0]["lr"] for part in self.parts]

    def rate(self, step: int) -> float:
        """Learning rate of the update with this number, counted from 0."""
        return self._lr * self._share(step)

    def _share(self, step: int) -> float:
        """The schedule: the rate's share of its peak."""
        c = self._config
        if step < c.warmup:
            return (step + 1) / c.warmup
        start = max(c.warmup, int(c.decay_from * self._total))
        if c.schedule == "constant" or step < start:
            return 1.0
        done = min(1.0, (step - start + 1) / max(1, self._total - start))
        share = 0.5 * (1 + math.cos(math.pi * done)) if c.schedule == "cosine" else 1 - done
        return c.floor + (1 - c.floor) * share

    def step(self, number: int) -> float:
        """Clips, applies and clears the gradients; returns their norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self._config.max_grad_norm))
        for part, peak in zip(self.parts, self._peaks, strict=True):
            for group in part.param_groups:
                group["lr"] = peak * self._share(number)
            part.step()
            part.zero_grad(set_to_none=True)
        return norm

    def reset(self) -> None:
        """Forgets moments, after weights were put back."""
        for part in self.parts:
            part.state.clear()

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def _elementwise(parameters: list[torch.nn.Parameter], lr: float, config: OptimizerConfig) -> torch.optim.Optimizer:
    if config.name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay)
    return torch.optim.AdamW(parameters, lr=lr, betas=config.betas, weight_decay=config.weight_decay)
