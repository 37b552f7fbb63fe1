"""A layer and its adapter in one product give what peft's two give, where they are compiled; else peft's own runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from rolecast.types import Slot
from rolecast.weights.adapters import activate, add_adapter
from rolecast.weights.folded import AdaptedLinear, _Folded, fold
from rolecast.weights.settings import LoraConfig
from tests.tiny import tiny_model

NARROW, WIDE = 12, 20


class Scaled(nn.Linear):
    """Another library's."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def layer(narrow: int = NARROW, wide: int = WIDE, bias: bool = False, kind: type[nn.Linear] = nn.Linear, **lora: Any) -> Any:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=3, lora_alpha=6, **lora)
    made = Linear(kind(narrow, wide, bias=bias).requires_grad_(False), "a", config=config, r=3, lora_alpha=6)
    nn.init.normal_(made.lora_B["a"].weight)
    fold(made)
    return made


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a product was folded; as if everything were compiled."""
    found: list[int] = []
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    apply = _Folded.apply
    monkeypatch.setattr(_Folded, "apply", lambda *given: found.append(1) or apply(*given))
    return found


def told(made: Any) -> list[Tensor]:
    """The output, and gradients of the input and the adapter."""
    x = torch.randn(2, 5, made.in_features, generator=torch.Generator().manual_seed(2)).requires_grad_()
    weight = torch.randn(2, 5, made.out_features, generator=torch.Generator().manual_seed(3))
    output = made(x)
    torch.autograd.backward((output * weight).sum())
    a, b = made.lora_A["a"].weight, made.lora_B["a"].weight
    assert made.base_layer.weight.grad is None
    return [grad for grad in (output.detach(), x.grad, a.grad, b.grad) if grad is not None]


@pytest.mark.parametrize(("narrow", "wide"), [(NARROW, WIDE), (WIDE, NARROW)])
def test_one_product_gives_what_two_give(narrow: int, wide: int, folds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = told(layer(narrow, wide))
    assert folds == [1]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    theirs = told(layer(narrow, wide))
    assert folds == [1]
    assert len(ours) == len(theirs) == 4
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("made", [
    lambda: layer(NARROW, NARROW), lambda: layer(bias=True), lambda: layer(lora_dropout=0.5), lambda: layer(use_dora=True),
    lambda: layer(lora_bias=True), lambda: layer(kind=Scaled), lambda: layer().requires_grad_(),
])  # fmt: skip
def test_what_is_more_than_the_two_matrices_is_left_to_peft(made: Callable[[], Any], folds: list[int]) -> None:
    made()(torch.randn(2, made().in_features))
    assert not folds


def test_a_base_of_another_precision_is_left_to_peft(folds: list[int]) -> None:
    made = layer()
    made.base_layer.to(torch.bfloat16)
    assert made(torch.randn(2, NARROW, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert not folds


@pytest.mark.parametrize(("narrow", "wide", "copied"), [(NARROW, WIDE, [2, 0]), (WIDE, NARROW, [0, 2])])
def test_what_is_compiled_is_folded(narrow: int, wide: int, copied: list[int]) -> None:
    """Through torch's own tracing: forward where the layer widens, backward where it narrows."""
    ours, theirs = layer(narrow, wide), layer(narrow, wide)
    graphs: list[str] = []

    def run(graph: torch.fx.GraphModule, given: Any) -> Callable[..., Any]:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    torch.compiler.reset()
    ours.forward = torch.compile(ours.forward, backend=aot_autograd(fw_compiler=run))  # type: ignore[method-assign]
    for one, other in zip(told(ours), told(theirs), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert [graph.count("aten.cat") for graph in graphs] == copied


def test_rows_of_several_adapters_are_left_to_peft(folds: list[int]) -> None:
    made = layer().eval()
    x = torch.randn(2, NARROW)
    found = made(x, adapter_names=["a", "__base__"])
    assert not folds
    assert torch.equal(found[1], made.base_layer(x)[1])


@pytest.mark.parametrize(("slots", "rests"), [((), True), (("a",), True), (("other",), False), (("a", "b"), False)])
def test_no_adapter_and_two_at_once_are_left_to_peft(slots: tuple[Slot, ...], rests: bool, folds: list[int]) -> None:
    made = layer()
    made.update_layer("b", 3, lora_alpha=6, config=peft.LoraConfig(r=3))
    made._active_adapter, made._disable_adapters = list(slots), rests
    x = torch.randn(2, NARROW)
    base = made.base_layer(x)
    assert torch.equal(made(x), base) == (slots != ("a", "b"))
    assert not folds


def test_a_merged_adapter_does_not_speak_twice(folds: list[int]) -> None:
    made, x = layer(), torch.randn(2, NARROW)
    wanted = made(x)
    made.merge()
    torch.testing.assert_close(made(x), wanted, atol=1e-5, rtol=1e-5)
    assert len(folds) == 1


def test_a_model_s_adapters_are_of_this_kind_and_each_slot_s_own_is_folded(folds: list[int]) -> None:
    model = tiny_model()
    for number, slot in enumerate(("a", "b")):
        add_adapter(model, slot, LoraConfig(rank=4, alpha=8), number)
    layers = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    assert len(layers) == 14
    for module in layers:
        for slot in ("a", "b"):
            nn.init.normal_(module.lora_B[slot].weight)
    x = torch.randn(3, 32)
    gate = model.model.layers[0].mlp.gate_proj
    for slot in ("b", "a"):
        activate(model, slot)
        wanted = gate.base_layer(x) + 2.0 * x @ gate.lora_A[slot].weight.t() @ gate.lora_B[slot].weight.t()
        torch.testing.assert_close(gate(x), wanted, atol=1e-4, rtol=1e-4)
    assert len(folds) == 2
