"""The plain backend: which slots a step moves, by whose gradients, and what a resume gives back to each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from rolecast.errors import InputError
from rolecast.learner.backends import PlainBackend, Training, make_backend
from rolecast.learner.batch import Padded
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.learner.settings import PLAIN, BackendConfig, OptimizerConfig
from rolecast.types import ImitationTerm, Objective
from rolecast.weights.logprobs import PLAIN as PLAIN_KERNELS
from rolecast.weights.settings import CHUNK, COMPILED_CHUNK, LoraConfig
from rolecast.weights.team import Casting, Layers, Team
from tests.tiny import tiny_team
from tests.two_slots import LORA

CASTING = Casting(frozenset({"planner", "answerer"}), ("planner", "answerer"))
SGD = OptimizerConfig(name="sgd", momentum=0.5, max_grad_norm=1e6, schedule="linear")


class Two(Ranks):
    """One rank of two whose other rank has the same gradients."""

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad *= 2


def backend_of(ranks: Ranks = ALONE) -> tuple[PlainBackend, Team]:
    team = tiny_team(CASTING, lora=LORA)
    backend = make_backend(team, {"planner": Training(SGD, 0.1, 10), "answerer": Training(SGD, 0.2, 10)}, PLAIN, ranks)
    assert isinstance(backend, PlainBackend)
    return backend, team


def with_gradients(team: Team, size: float) -> dict[str, torch.Tensor]:
    """The weights before the step."""
    for parameter in team.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, size)
    return {name: parameter.detach().clone() for name, parameter in team.named_parameters()}


def steps(team: Team, before: dict[str, torch.Tensor], slot: str) -> set[float]:
    """How far the slot's weights went."""
    moved = [before[name] - parameter.detach() for name, parameter in team.trained(slot)]
    return {round(float(distance), 4) for one in moved for distance in one.unique()}


def test_the_gradients_of_all_ranks_are_summed() -> None:
    for ranks, factor in ((ALONE, 1.0), (Two(), 2.0)):
        backend, team = backend_of(ranks)
        before = with_gradients(team, 1e-2)
        norms = backend.step({"planner": 0})
        assert steps(team, before, "planner") == {round(0.09 * 1e-2 * factor, 4)}  # the first of ten steps to 0
        weights = sum(parameter.numel() for _, parameter in team.trained("planner"))
        assert norms == {"planner": pytest.approx(1e-2 * factor * weights**0.5, rel=1e-4)}


def test_a_step_moves_the_slots_that_it_names_each_at_its_own_rate() -> None:
    backend, team = backend_of()
    before = with_gradients(team, 1.0)
    assert set(backend.step({"answerer": 4})) == {"answerer"}
    assert steps(team, before, "answerer") == {0.1}  # half of its rate
    assert (backend.rate("planner", 4), backend.rate("answerer", 4)) == pytest.approx((0.05, 0.1))
    assert steps(team, before, "planner") == {0.0}


def test_each_slot_resumes_with_its_own_moments(tmp_path: Path) -> None:
    backend, team = backend_of()
    for size, slot in ((1.0, "planner"), (3.0, "answerer")):
        with_gradients(team, size)
        backend.step({slot: 0})
    backend.save(tmp_path)
    again, team = backend_of()
    again.load(tmp_path)
    for slot, size in (("planner", 1.0), ("answerer", 3.0)):
        [part] = again.optimizers[slot].parts
        found = {float(state["momentum_buffer"].mean()) for state in part.state.values()}
        assert found == {size}


def test_weights_that_lack_one_are_not_put_back() -> None:
    backend, team = backend_of()
    weights = {name: tensor.clone() + 1 for name, tensor in backend.weights().items()}
    assert set(weights) == {name for slot in ("planner", "answerer") for name, _ in team.trained(slot)}
    gone = min(weights)
    before = backend.weights()[gone].clone()
    with pytest.raises(KeyError, match=f"weights to put back lack {gone}"):
        backend.load_weights({name: tensor for name, tensor in weights.items() if name != gone})
    assert torch.equal(backend.weights()[gone], before)
    backend.load_weights(weights)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in backend.weights().items())


def test_a_pass_is_at_temperature_1_unless_it_is_told() -> None:
    backend, team = backend_of()
    rows = Padded(torch.tensor([[5, 6, 7]]), torch.tensor([0, 0]), torch.tensor([1, 2]), np.arange(2))
    said = {t: backend.forward("planner", rows, *t)[0].tolist() for t in ((), (1.0,), (2.0,))}
    assert said[()] == said[1.0,] != said[2.0,]
    assert [said[t] for t in said] == [team("planner", rows, *t)[0].tolist() for t in said]


def test_a_learner_by_hand_is_as_one_that_is_made() -> None:
    backend, team = backend_of()
    objectives = [Objective(slot, slot, 0.1, imitation=ImitationTerm()) for slot in ("planner", "answerer")]
    made, plain = make_learner(objectives, team, SGD, 1, 0), Learner(tuple(objectives), team, backend, 0)
    assert (made.temperature, made.max_tokens) == (plain.temperature, plain.max_tokens) == (1.0, 8192)


def test_models_are_compiled_where_that_is_asked_for_and_never_with_zero_3() -> None:
    team = tiny_team()
    training = {"shared": Training(SGD, 0.1, 1)}
    make_backend(team, training, PLAIN, ALONE)
    assert team._trunk(team.base) is team.base.base_model
    with pytest.raises(InputError, match="ZeRO-3 fetches weights in the middle of a pass"):
        make_backend(team, training, BackendConfig(name="deepspeed", zero=3, compile=True), ALONE)
    assert team.chunk == CHUNK
    make_backend(team, training, BackendConfig(compile=True), ALONE)
    assert team.chunk == COMPILED_CHUNK // 4  # float32
    assert team._kernels is not PLAIN_KERNELS
    assert isinstance(team._trunk(team.base), Layers)
    assert team._trunk(team.base) is team._trunk(team.base)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)])
def test_recomputed_layers_keep_less_and_have_the_same_gradient(lora: LoraConfig | None) -> None:
    rows = Padded(torch.tensor([[5, 6, 7, 8]]), torch.tensor([0, 0]), torch.tensor([1, 3]), np.arange(2))
    gradients, kept = [], []
    for backend in (PLAIN, BackendConfig(recompute=True)):
        team = tiny_team(lora=lora)
        made = make_backend(team, {"shared": Training(SGD, 0.1, 1)}, backend, ALONE)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):  # type: ignore[func-returns-value]
            chosen, _ = made.forward("shared", rows)
        (-chosen.sum()).backward()
        gradients.append({name: parameter.grad for name, parameter in team.trained("shared")})
        kept.append(sum(sizes))
    assert kept[1] < 0.6 * kept[0]  # what is left is half logits, which are few enough to be kept
    for name, gradient in gradients[0].items():
        assert gradient is not None
        assert torch.equal(gradient, gradients[1][name]), name
