"""Learning-rate schedules at hand-picked steps, and what one optimizer step does."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from rolecast.learner.muon import Muon
from rolecast.learner.optimizer import GroupedOptimizer, SlotOptimizer, grouped
from rolecast.learner.settings import OptimizerConfig


class Toy(nn.Module):
    """Named like a language model: matrices of hidden layers, a bias, and an embedding outside the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.model.embed = nn.Embedding(5, 3)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters(), 1):
                parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) * 0.1 + number)

    def with_gradients(self, size: float = 1.0) -> Toy:
        for parameter in self.parameters():
            parameter.grad = torch.full_like(parameter, size)
        return self


def Optimizer(module: nn.Module, config: OptimizerConfig, lr: float, updates: int) -> SlotOptimizer:  # noqa: N802
    return SlotOptimizer(list(module.named_parameters()), config, lr, updates)


def numbers(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


@pytest.mark.parametrize(
    ("config", "total", "rates"),
    [
        ({}, 10, {0: 1.0, 5: 1.0, 9: 1.0, 50: 1.0}),
        ({"warmup": 4}, 10, {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 9: 1.0}),
        ({"schedule": "linear"}, 10, {0: 0.9, 4: 0.5, 8: 0.1, 9: 0.0, 30: 0.0}),
        ({"schedule": "linear", "decay_from": 0.6}, 10, {0: 1.0, 5: 1.0, 6: 0.75, 7: 0.5, 9: 0.0}),
        ({"schedule": "linear", "decay_from": 0.6, "floor": 0.1}, 10, {5: 1.0, 6: 0.775, 9: 0.1, 99: 0.1}),
        ({"schedule": "linear", "warmup": 2}, 10, {0: 0.5, 1: 1.0, 2: 0.875, 9: 0.0}),
        ({"schedule": "linear", "warmup": 8, "decay_from": 0.2}, 10, {7: 1.0, 8: 0.5, 9: 0.0}),
        ({"schedule": "cosine"}, 10, {0: 0.9755283, 4: 0.5, 9: 0.0}),
        ({"schedule": "cosine", "warmup": 2, "floor": 0.5}, 10, {1: 1.0, 5: 0.75, 9: 0.5}),
        ({"schedule": "cosine", "decay_from": 1.0}, 10, {9: 1.0}),
        ({"schedule": "linear", "warmup": 20}, 10, {0: 0.05, 9: 0.5, 19: 1.0}),
    ],
)
def test_rate(config: dict[str, Any], total: int, rates: dict[int, float]) -> None:
    optimizer = Optimizer(Toy(), OptimizerConfig(**config), 2.0, total)
    assert {step: optimizer.rate(step) for step in rates} == {step: pytest.approx(2.0 * rate) for step, rate in rates.items()}


@pytest.mark.parametrize("bad", [{"floor": 1.5}, {"decay_from": -0.1}, {"warmup": -1}, {"max_grad_norm": 0}, {"name": "lamb"}, {"lr": 1}])
def test_config_is_closed_and_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OptimizerConfig(**bad)


def test_a_step_applies_the_rate_of_its_number() -> None:
    toy = Toy()
    before = numbers(toy)
    optimizer = Optimizer(toy.with_gradients(), OptimizerConfig(warmup=4, max_grad_norm=1e9), 0.01, 10)
    optimizer.step(1)
    for name, parameter in toy.named_parameters():
        assert torch.allclose(before[name] - parameter, torch.tensor(0.005), atol=1e-5)  # Adam's first step has the rate's size


def test_a_step_reports_the_norm_before_it_clips() -> None:
    toy = Toy()
    size = sum(p.numel() for p in toy.parameters()) ** 0.5
    optimizer = Optimizer(toy.with_gradients(3.0), OptimizerConfig(max_grad_norm=1.0), 0.1, 10)
    assert optimizer.step(0) == pytest.approx(3 * size)


def test_gradients_are_clipped_to_the_largest_norm() -> None:
    toy = Toy()
    optimizer = Optimizer(toy.with_gradients(3.0), OptimizerConfig(max_grad_norm=0.5, betas=(0.0, 0.0)), 0.1, 10)
    seen: list[float] = []
    optimizer.parts[0].register_step_pre_hook(
        lambda part, *_: seen.append(sum(float((p.grad**2).sum()) for group in part.param_groups for p in group["params"]) ** 0.5)
    )
    optimizer.step(0)
    assert seen == pytest.approx([0.5], rel=1e-4)


def test_a_step_clears_the_gradients() -> None:
    toy = Toy()
    Optimizer(toy.with_gradients(), OptimizerConfig(), 0.1, 10).step(0)
    assert all(parameter.grad is None for parameter in toy.parameters())


def test_muon_takes_the_matrices_of_hidden_layers_and_adamw_the_rest() -> None:
    toy = Toy()
    adamw, muon = Optimizer(toy, OptimizerConfig(name="muon"), 0.1, 10).parts
    assert isinstance(muon, Muon)
    of = {id(parameter): name for name, parameter in toy.named_parameters()}
    assert [of[id(p)] for p in muon.param_groups[0]["params"]] == ["model.layers.0.weight"]
    assert sorted(of[id(p)] for p in adamw.param_groups[0]["params"]) == ["model.embed.weight", "model.layers.0.bias"]


@pytest.mark.parametrize("rest", [0.5, 2.0])
def test_both_parts_follow_the_schedule_and_adamw_has_its_share_of_the_rate(rest: float) -> None:
    optimizer = Optimizer(Toy().with_gradients(), OptimizerConfig(name="muon", schedule="linear", rest=rest), 0.1, 10)
    optimizer.step(4)
    adamw, muon = (part.param_groups[0]["lr"] for part in optimizer.parts)
    assert (adamw, muon, optimizer.rate(4)) == pytest.approx((rest * 0.05, 0.05, 0.05))


def test_without_muon_adamw_has_the_whole_rate() -> None:
    [adamw] = Optimizer(Toy(), OptimizerConfig(rest=0.5), 0.1, 10).parts
    assert adamw.param_groups[0]["lr"] == 0.1


def test_muon_has_the_momentum_of_the_config() -> None:
    _, muon = Optimizer(Toy(), OptimizerConfig(name="muon", momentum=0.7), 0.1, 10).parts
    assert muon.param_groups[0]["momentum"] == 0.7


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_after_a_reset_nothing_is_remembered(name: str) -> None:
    used, fresh = Toy(), Toy()
    config = OptimizerConfig(name=name)
    optimizer = Optimizer(used.with_gradients(5.0), config, 0.1, 10)
    optimizer.step(0)
    used.load_state_dict(fresh.state_dict())
    optimizer.reset()
    used.with_gradients(-1.0)
    optimizer.step(3)
    Optimizer(fresh.with_gradients(-1.0), config, 0.1, 10).step(3)
    assert all(torch.equal(a, b) for a, b in zip(used.parameters(), fresh.parameters(), strict=True))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_state_comes_back(name: str) -> None:
    config = OptimizerConfig(name=name)
    one = Toy()
    first = Optimizer(one.with_gradients(5.0), config, 0.1, 10)
    first.step(0)
    two = Toy()
    two.load_state_dict(one.state_dict())
    second = Optimizer(two, config, 0.1, 10)
    second.load_state_dict(deepcopy(first.state_dict()))  # as from a file: torch shares the tensors it is given
    for toy, optimizer in ((one, first), (two, second)):
        toy.with_gradients(-1.0)
        optimizer.step(1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("size", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_gradient_that_is_no_number_moves_neither_weights_nor_moments_nor_decay(name: str, size: float) -> None:
    spoiled, plain = Toy(), Toy()
    optimizers = [Optimizer(toy, OptimizerConfig(name=name, weight_decay=0.1), 0.1, 10) for toy in (spoiled, plain)]
    before = numbers(spoiled)
    spoiled.with_gradients(size)
    assert not math.isfinite(optimizers[0].step(0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in numbers(spoiled).items())
    for toy, optimizer in zip((spoiled, plain), optimizers, strict=True):
        toy.with_gradients(-1.0)
        optimizer.step(1)
    assert all(torch.equal(a, b) for a, b in zip(spoiled.parameters(), plain.parameters(), strict=True))


def test_masters_in_float32_gather_what_bfloat16_cannot_hold() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = SlotOptimizer([("w", weight)], OptimizerConfig(name="sgd", momentum=0.0, max_grad_norm=1e9), 1e-4, 100)
    for _ in range(100):
        (weight * 1.0).sum().backward()
        optimizer.step(0)
    assert optimizer.parameters[0].tolist() == pytest.approx([1 - 100 * 1e-4] * 4, rel=1e-5)
    assert weight.tolist() == pytest.approx([0.98828125] * 4)  # the nearest bfloat16; steps of 1e-4 from 1 would all be lost


def test_micro_batches_add_up_in_float32() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = SlotOptimizer([("w", weight)], OptimizerConfig(name="sgd", momentum=0.0, max_grad_norm=1e9), 1.0, 1)
    for size in (1.0, 0.002, 0.002):  # in bfloat16 1 + .002 is 1
        (weight * size).sum().backward()
    optimizer.step(0)
    assert optimizer.parameters[0].item() == pytest.approx(1 - 1.004, abs=1e-4)


def test_masters_come_back_and_are_forgotten_with_weights_put_back() -> None:
    one, two = (nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2))
    first, second = (SlotOptimizer([("w", w)], OptimizerConfig(name="sgd"), 1e-4, 10) for w in (one, two))
    (one * 1.0).sum().backward()
    first.step(0)
    second.load_state_dict(deepcopy(first.state_dict()))
    assert torch.equal(first.parameters[0], second.parameters[0])
    with torch.no_grad():
        one.fill_(2.0)
    first.reset()
    assert first.parameters[0].tolist() == [2.0] * 4


def groups(add_up: Callable[[float], float] = lambda number: number, **config: Any) -> tuple[GroupedOptimizer, dict[str, nn.Parameter]]:
    """Two slots of two weights at 0, whose gradients have the norms 5 and 1, with bounds of 1 and 0.5; a step of SGD is the gradient."""
    slots = {"one": nn.Parameter(torch.zeros(2)), "two": nn.Parameter(torch.zeros(2))}
    configs = [OptimizerConfig(name="sgd", max_grad_norm=bound, **{"momentum": 0.0, **config}) for bound in (1.0, 0.5)]
    made = grouped([(slot, [p], c, 1.0) for (slot, p), c in zip(slots.items(), configs, strict=True)], add_up)
    slots["one"].grad, slots["two"].grad = torch.tensor([3.0, 4.0]), torch.tensor([0.6, 0.8])
    return made, slots


def at(parameter: nn.Parameter) -> Any:
    return pytest.approx(parameter.tolist(), abs=1e-5)


def test_each_group_is_clipped_to_its_own_bound_by_its_own_norm() -> None:
    optimizer, slots = groups()
    optimizer.step()
    assert optimizer.norms == {"one": pytest.approx(5.0), "two": pytest.approx(1.0)}
    assert (at(slots["one"]), at(slots["two"])) == ([-0.6, -0.8], [-0.3, -0.4])


def test_a_gradient_within_its_bound_is_left_as_it_is() -> None:
    optimizer, slots = groups()
    slots["two"].grad = torch.tensor([0.3, 0.0])
    optimizer.step()
    assert at(slots["two"]) == [-0.3, 0.0]


def test_a_norm_is_that_of_the_shards_of_all_ranks() -> None:
    """The other ranks hold squares of 144 and 0.44: the norms are 13 and 1.2."""
    squares = iter([144.0, 0.44])
    optimizer, slots = groups(lambda number: number + next(squares))
    optimizer.step()
    assert optimizer.norms == {"one": pytest.approx(13.0), "two": pytest.approx(1.2)}
    assert (at(slots["one"]), at(slots["two"])) == ([-3 / 13, -4 / 13], [-0.25, -1 / 3])


def test_a_group_that_is_not_active_does_not_move_by_momentum_or_decay_either() -> None:
    optimizer, slots = groups(momentum=0.5, weight_decay=0.1)
    optimizer.step()
    before, [_, other] = slots["two"].tolist(), optimizer.param_groups
    other["active"] = False
    optimizer.norms.clear()
    optimizer.step()
    assert (slots["two"].tolist(), set(optimizer.norms)) == (before, {"one"})
    assert len(optimizer.param_groups) == 2  # it is only left out of the step


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_group_whose_gradient_is_no_number_does_not_move_and_the_other_does(number: float) -> None:
    optimizer, slots = groups(weight_decay=0.1)
    slots["one"].grad = torch.tensor([number, 1.0])
    optimizer.step()
    assert not math.isfinite(optimizer.norms["one"])
    assert (slots["one"].tolist(), at(slots["two"])) == ([0.0, 0.0], [-0.3, -0.4])


def test_a_group_has_the_settings_of_its_slot() -> None:
    slots = [("one", OptimizerConfig(betas=(0.8, 0.9), weight_decay=0.1), 1e-3), ("two", OptimizerConfig(betas=(0.7, 0.6)), 1e-4)]
    made = grouped([(slot, [nn.Parameter(torch.zeros(1))], c, lr) for slot, c, lr in slots], float)
    assert isinstance(made, torch.optim.AdamW)
    told = [{name: group[name] for name in ("slot", "lr", "betas", "weight_decay", "active")} for group in made.param_groups]
    assert told == [
        {"slot": "one", "lr": 1e-3, "betas": (0.8, 0.9), "weight_decay": 0.1, "active": True},
        {"slot": "two", "lr": 1e-4, "betas": (0.7, 0.6), "weight_decay": OptimizerConfig().weight_decay, "active": True},
    ]


def test_a_group_is_clipped_by_torchs_own_formula() -> None:
    """bound / (norm + 1e-6): half where both are 1e-6."""
    optimizer, slots = groups()
    optimizer.param_groups[0]["max_grad_norm"] = 1e-6
    slots["one"].grad = torch.tensor([1e-6, 0.0])
    optimizer.step()
    assert slots["one"].tolist() == pytest.approx([-5e-7, 0.0], rel=1e-3)
    other = nn.Parameter(torch.zeros(2))
    other.grad = torch.tensor([1e-6, 0.0])
    nn.utils.clip_grad_norm_(other, 1e-6)
    assert other.grad.tolist() == pytest.approx([5e-7, 0.0], rel=1e-3)
