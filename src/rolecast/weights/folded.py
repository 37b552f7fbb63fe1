"""A linear layer and its adapter in one matrix product:

    x Wᵀ + s · (x Aᵀ) Bᵀ  =  [x, x Aᵀ] [W, s · B]ᵀ

By themselves, base and adapter write a result each, which are read again to be added. Of an MLP's gate over 40,000 tokens a result is
700 MB, and a GPU takes as long for three of them as for a third of the base's product. Copying the input and the weights is little beside it
where the layer widens; where it narrows, the same goes for the gradient of its input,

    g W + g' A  =  [g, g'] [W; A],  g' = s · g B.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _Folded(torch.autograd.Function):
    """The base's weight gets no gradient: torch would compute one of all of [W, s · B]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        low = x @ a.t()
        ctx.save_for_backward(x, low, weight, a, b)
        ctx.scale = scale
        if len(b) > x.shape[-1]:
            return torch.cat([x, low], -1) @ torch.cat([weight, scale * b], 1).t()
        return x @ weight.t() + scale * (low @ b.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        x, low, weight, a, b = ctx.saved_tensors
        of_low = ctx.scale * (gradient @ b)
        narrows = len(b) < x.shape[-1]
        of_x = torch.cat([gradient, of_low], -1) @ torch.cat([weight, a]) if narrows else gradient @ weight + of_low @ a
        of_b = ctx.scale * (gradient.flatten(0, -2).t() @ low.flatten(0, -2))
        return of_x, None, of_low.flatten(0, -2).t() @ x.flatten(0, -2), of_b, None


def fold(model: nn.Module) -> None:
    """From now on the model's adapters over plain linear layers are of the kind below. Of a quantised layer, or another library's, peft's own stays."""
    for module in model.modules():
        if type(module) is Linear and type(module.base_layer) is nn.Linear:
            module.__class__ = AdaptedLinear


class AdaptedLinear(Linear):
    """peft's layer, which computes as above where it is compiled: scoring and updates are, and few rows, as an engine has them, are not."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args or kwargs or not torch.compiler.is_compiling() or (slot := self._folds(x)) is None:
            plain: Tensor = super().forward(x, *args, **kwargs)
            return plain
        a, b = self.lora_A[slot].weight, self.lora_B[slot].weight
        found: Tensor = _Folded.apply(x, self.base_layer.weight, a, b, self.scaling[slot])  # type: ignore[no-untyped-call]
        return found

    def _folds(self, x: Tensor) -> str | None:
        """The one adapter that speaks, where it and its layer are nothing but the matrices above."""
        base: Any = self.base_layer
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1 or base.out_features == base.in_features:
            return None
        [slot] = self.active_adapters
        plain = (
            slot in self.lora_A and slot not in self.lora_variant and isinstance(self.lora_dropout[slot], nn.Identity)
            and base.bias is None and self.lora_B[slot].bias is None and x.dtype == base.weight.dtype == self.lora_A[slot].weight.dtype
            and not base.weight.requires_grad
        )  # fmt: skip
        return slot if plain else None
