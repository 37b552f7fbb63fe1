"""Muon: momentum whose update is orthogonalised, for the matrices of hidden layers (Jordan et al. 2024).

torch.optim.Muon iterates in bfloat16, which CPUs without native support emulate many times slower than float32; this one
iterates in the gradient's own type and handles all matrices of one shape in one batched product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315  # quintic Newton-Schulz that sends singular values towards 1


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled to AdamW's typical update size: 0.2 · √max(rows, columns)."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, iterations: int = 4) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "iterations": iterations})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                updates = torch.stack([self._momentum(p, group["momentum"]) for p in parameters])
                scale = group["lr"] * 0.2 * max(shape) ** 0.5
                for parameter, update in zip(parameters, orthogonalize(updates, group["iterations"]), strict=True):
                    parameter.add_(update, alpha=-scale)
        return None

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        state: dict[str, Any] = self.state[parameter]
        assert parameter.grad is not None
        buffer = state.setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)


def orthogonalize(matrices: Tensor, iterations: int) -> Tensor:
    """The nearest semi-orthogonal matrices, approximately. `matrices`: (batch, rows, columns)."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x
