"""Several slots in one step: each is trained as if it were alone, at its own rate, over one base."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.settings import OptimizerConfig
from rolecast.learner.step import reinforce
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting
from tests.tiny import tiny_team
from tests.two_slots import ANSWERER, LORA, PLANNER, learner_of, recorded


def trained(learner: Learner, steps: int = 3) -> dict[str, torch.Tensor]:
    for step in range(steps):
        reinforce(learner, *recorded(step))
    return {name: tensor.clone() for name, tensor in learner.weights().items()}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys() != set()
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


def test_each_slot_ends_where_it_would_have_ended_alone() -> None:
    together, start = trained(learner_of(PLANNER, ANSWERER)), learner_of(PLANNER, ANSWERER).weights()
    for objective in (PLANNER, ANSWERER):
        alone = trained(learner_of(objective))
        assert distance(alone, {name: together[name] for name in alone}) <= 1e-5
        assert distance(alone, {name: start[name] for name in alone}) > 1e-3  # there was something to agree on


def test_the_order_of_objectives_changes_nothing() -> None:
    assert distance(trained(learner_of(PLANNER, ANSWERER)), trained(learner_of(ANSWERER, PLANNER))) == 0.0


def test_objectives_of_one_slot_add_up_to_one_step() -> None:
    """Half the loss twice is the whole loss once."""
    half = replace(ANSWERER, kl=None, minibatches=1, epochs=1)
    threads, units = recorded()
    own = [unit for unit in units if unit.objective == "answer"]
    once, twice = learner_of(half), learner_of(half, replace(half, name="again"))
    reinforce(once, threads, own)
    metrics = reinforce(twice, threads, [*own, *[replace(unit, objective="again") for unit in own]])
    assert distance(once.weights(), twice.weights()) <= 2e-5  # clipped to the same norm, so the same step
    assert metrics["answer/loss"] == pytest.approx(metrics["again/loss"])
    assert once.updates == twice.updates == {"answerer": 1}


def test_rates_of_one_slot_must_agree() -> None:
    with pytest.raises(ValueError, match="slot answerer has rates"):
        learner_of(ANSWERER, replace(ANSWERER, name="other", lr=1e-4))


def test_a_slot_without_rows_does_not_move_at_all() -> None:
    """Neither by its moments nor by decay."""
    learner = learner_of(PLANNER, ANSWERER)
    trained(learner)
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    threads, units = recorded(7)
    reinforce(learner, threads, [unit for unit in units if unit.objective == "answer"])
    still = [name for name, tensor in learner.weights().items() if torch.equal(tensor, before[name])]
    assert {name for name, _ in [*learner.team.trained("planner"), *learner.team.trained("critic")]} == set(still)


def test_every_slot_has_its_own_rate_norm_and_optimizer() -> None:
    learner = learner_of(
        PLANNER, ANSWERER, optimizers={"answerer": OptimizerConfig(name="sgd", momentum=0.0, max_grad_norm=1e-3, schedule="linear")}
    )
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    metrics = reinforce(learner, *recorded())
    assert metrics["plan/lr"] == pytest.approx(3e-3)
    assert metrics["plan/critic/lr"] == pytest.approx(1e-2)
    assert metrics["answer/lr"] < 1e-3
    moved = {name: float((tensor - before[name]).norm()) for name, tensor in learner.weights().items()}
    answerer = sum(moved[name] ** 2 for name, _ in learner.team.trained("answerer")) ** 0.5
    assert 0 < answerer <= 6 * 1e-3 * 1e-3  # six steps of a gradient of norm 1e-3 at most, at a rate of 1e-3 at most
    assert max(moved[name] for name, _ in learner.team.trained("planner")) > 1e-2


def test_a_schedule_is_as_long_as_the_updates_of_all_steps() -> None:
    """Ten steps of two epochs over three minibatches; the planner's have two minibatches."""
    falling = OptimizerConfig(schedule="linear")
    learner = learner_of(PLANNER, ANSWERER, optimizers=dict.fromkeys(("planner", "answerer", "critic"), falling))
    for slot, peak, updates in (("answerer", 1e-3, 60), ("planner", 3e-3, 20), ("critic", 1e-2, 20)):
        rates = [learner.backend.rate(slot, number) for number in (updates // 2 - 1, updates - 1)]
        assert rates == pytest.approx([peak / 2, 0.0])


def test_who_speaks_is_not_who_is_trained() -> None:
    learner = learner_of(PLANNER, ANSWERER)
    before = {name for name, parameter in learner.team.named_parameters() if parameter.requires_grad}
    for slot in ("planner", "frozen", "critic", "answerer", "frozen"):
        learner.team.model(slot)
    assert {name for name, parameter in learner.team.named_parameters() if parameter.requires_grad} == before


@pytest.mark.parametrize("lora", [LORA, None])
def test_whole_models_by_slot_are_trained_alike(lora: LoraConfig | None) -> None:
    together = trained(learner_of(PLANNER, ANSWERER, lora=lora))
    for slot in ("planner", "answerer", "critic"):
        assert any(slot in name or lora is None for name in together)
    assert all(torch.isfinite(tensor).all() for tensor in together.values())


def test_updates_of_bfloat16_weights_arrive() -> None:
    """At a rate far below the distance between two bfloat16 numbers, twenty steps move the masters as in float32."""
    moves = []
    for dtype in (torch.float32, torch.bfloat16):
        casting = Casting(frozenset({"answerer"}), ("answerer",))
        team = tiny_team(casting, scale=2.0).to(dtype)
        objective = replace(ANSWERER, kl=None, lr=2e-6, minibatches=1, epochs=1)
        learner = make_learner([objective], team, OptimizerConfig(), 20, 0)
        masters = [p.detach().float().clone() for p in learner.backend.optimizers["answerer"].parameters]  # type: ignore[attr-defined]
        threads, units = recorded()
        for _ in range(20):
            reinforce(learner, threads, [unit for unit in units if unit.objective == "answer"])
        after = learner.backend.optimizers["answerer"].parameters  # type: ignore[attr-defined]
        moves.append(sum(float((p.detach() - m).abs().sum()) for p, m in zip(after, masters, strict=True)))
        assert all(torch.equal(p, q.to(p.dtype)) for (_, p), q in zip(team.trained("answerer"), after, strict=True))
    assert moves[1] == pytest.approx(moves[0], rel=0.1)
