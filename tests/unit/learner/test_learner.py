from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rolecast.errors import DivergedError, EmptyUpdateError, RatioGateError
from rolecast.learner.batch import rl_batch, sft_batch
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.model import Critic, Policy
from rolecast.learner.settings import OptimizerConfig
from rolecast.learner.step import reinforce
from rolecast.ports import GenerateRequest, Sampling
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.scheduler import play
from rolecast.types import Action, Example, Objective, Observation, Thread, Unit
from tests.tiny import RENDERER, tiny_model

GSPO = Objective("o", "shared", "gspo", "group", "group", lr=1e-3, clip=(0.1, 0.1), minibatches=2)
PPO = Objective("o", "shared", "ppo", "gae", "token", lr=1e-3, critic="critic", critic_lr=1e-2, minibatches=2)


def sampled_threads(model: torch.nn.Module, groups: int = 4, members: int = 3) -> list[Thread]:
    """Threads of two turns each, sampled by the engine from `model`."""
    engine = TransformersEngine({"shared": model}, RENDERER, 16, 128, lockstep=True)  # type: ignore[dict-item]

    async def episode(group: int, member: int) -> Thread:
        thread = Thread(f"{group}.{member}", "planner", "shared")
        for turn in range(2):
            text = "planner question: Who is Bak Bam?" if turn == 0 else " memory"
            thread.turns.append(Observation(RENDERER.encode(text), text))
            done = await engine.generate(
                GenerateRequest(thread.ids, "shared", 3 + member, (), Sampling(), 100 * group + 10 * member + turn)
            )
            thread.turns.append(Action(f"{thread.id}/a{turn}", done.ids, done.logprobs, "v", done.text, done.finish))
        return thread

    jobs = [lambda g=g, m=m: episode(g, m) for g in range(groups) for m in range(members)]
    return asyncio.run(play(jobs, engine, len(jobs)))


def units_of(threads: list[Thread], reward: str = "member") -> list[Unit]:
    units = []
    for thread in threads:
        group, member = thread.id.split(".")
        value = float(member) if reward == "member" else 1.0
        actions = tuple(action.id for action in thread.actions)
        units.append(Unit(thread.id, actions, value, "o", f"g{group}", thread.id, tag="planner", group=f"g{group}", rollout=thread.id))
    return units


def learner_of(objective: Objective, seed: int = 0, **options: object) -> Learner:
    critic = Critic(tiny_model(seed)) if objective.critic else None
    return make_learner(objective, Policy(tiny_model(seed)), OptimizerConfig(), 10, 0, critic=critic, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", [GSPO, PPO, replace(PPO, estimator="group", critic=None, loss="ppo")])
def test_sampler_and_trainer_agree_and_the_first_minibatch_has_ratio_one(objective: Objective) -> None:
    learner = learner_of(replace(objective, minibatches=1))
    threads = sampled_threads(learner.policy.model)
    metrics = reinforce(learner, threads, units_of(threads))
    assert metrics["sampler_mismatch"] <= 1e-4
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize("objective", [GSPO, PPO])
def test_the_ratio_gate_stops_a_run_whose_engine_has_other_weights(objective: Objective) -> None:
    learner = learner_of(objective)
    threads = sampled_threads(tiny_model(seed=1))
    with pytest.raises(RatioGateError, match="trainer and sampler disagree"):
        reinforce(learner, threads, units_of(threads))
    assert learner.updates == 0


def test_equal_rewards_are_an_error_and_change_nothing() -> None:
    learner = learner_of(GSPO)
    before = [p.clone() for p in learner.policy.parameters()]
    threads = sampled_threads(learner.policy.model)
    with pytest.raises(EmptyUpdateError, match="rewards are equal"):
        reinforce(learner, threads, units_of(threads, "same"))
    assert all(torch.equal(a, b) for a, b in zip(before, learner.policy.parameters(), strict=True))


def gradient(objective: Objective, max_tokens: int) -> torch.Tensor:
    """Gradient of one minibatch over the whole batch, cut into micro-batches of `max_tokens`."""
    learner = learner_of(replace(objective, minibatches=1), max_tokens=max_tokens)
    threads = sampled_threads(learner.policy.model)
    learner.backend.step = lambda number: 0.0  # type: ignore[method-assign]
    reinforce(learner, threads, units_of(threads))
    return torch.cat([p.grad.flatten() for p in learner.policy.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    "objective", [GSPO, replace(PPO, estimator="group", critic=None), replace(PPO, estimator="group", critic=None, per="unit")]
)
def test_gradient_does_not_depend_on_how_micro_batches_are_cut(objective: Objective) -> None:
    whole, cut = gradient(objective, 1 << 20), gradient(objective, 64)
    assert whole.abs().max() > 0
    assert torch.allclose(whole, cut, atol=1e-6)


@pytest.mark.parametrize("loss", ["gspo", "ppo"])
def test_an_update_raises_the_probability_of_the_better_rollouts(loss: str) -> None:
    objective = replace(GSPO, loss=loss, lr=3e-3, minibatches=1)  # type: ignore[arg-type]
    learner = learner_of(objective)
    threads = sampled_threads(learner.policy.model)
    units = units_of(threads)
    batch = learner.score(rl_batch("shared", threads, units))
    reinforce(learner, threads, units)
    change = learner.score(batch).old_logprob - batch.old_logprob
    moved = {m: change[np.isin(batch.unit, [i for i, u in enumerate(units) if u.id.endswith(f".{m}")])].sum() for m in (0, 2)}
    assert moved[2] > 0 > moved[0]


def test_observation_tokens_get_no_gradient_from_the_loss() -> None:
    """The loss of a batch is the same whatever advantage its observation tokens are given."""
    learner = learner_of(GSPO)
    threads = sampled_threads(learner.policy.model)
    batch = rl_batch("shared", threads, units_of(threads))
    observed = sum(len(turn.ids) for thread in threads for turn in thread.turns if isinstance(turn, Observation))
    assert (~batch.trained).sum() == observed
    assert batch.trained.sum() == sum(len(action.ids) for thread in threads for action in thread.actions)


def test_ppo_trains_the_critic_towards_the_returns() -> None:
    learner = learner_of(replace(PPO, minibatches=1, lr=1e-9, critic_lr=2e-3))
    threads = sampled_threads(learner.policy.model)
    losses = [reinforce(learner, threads, units_of(threads))["critic/loss"] for _ in range(16)]
    assert losses[-1] < 0.7 * losses[0]


def test_kl_in_the_reward_needs_a_reference_and_pulls_returns_down() -> None:
    objective = replace(PPO, kl=0.5, kl_in="reward", minibatches=1)
    learner = learner_of(objective, reference=Policy(tiny_model(seed=3)))
    threads = sampled_threads(learner.policy.model)
    batch = learner.score(rl_batch("shared", threads, units_of(threads)))
    assert np.abs(batch.ref_logprob - batch.old_logprob)[batch.trained].max() > 1e-3
    reinforce(learner, threads, units_of(threads))


def test_sft_learns_a_row_and_only_its_trained_tokens() -> None:
    objective = Objective("sft", "shared", "nll", "none", "token", lr=1e-2, minibatches=1)
    learner = learner_of(objective)
    ids = RENDERER.encode("planner question: Who is Bak Bam?")
    row = Example(ids, tuple(i >= len(ids) - 3 for i in range(len(ids))), tag="planner")
    batch = sft_batch("shared", [row])
    losses = [learner.update(batch)["nll"] for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]
    assert batch.trained.sum() == 3


def test_state_survives_a_round_trip(tmp_path: Path) -> None:
    learner = learner_of(PPO)
    threads = sampled_threads(learner.policy.model)
    reinforce(learner, threads, units_of(threads))
    other = learner_of(PPO)
    other.policy.load_state_dict(learner.policy.state_dict())
    learner.save(tmp_path)
    other.load(tmp_path)
    more = sampled_threads(learner.policy.model)
    for one in (learner, other):
        reinforce(one, more, units_of(more))
    assert all(torch.equal(a, b) for a, b in zip(learner.policy.parameters(), other.policy.parameters(), strict=True))
    assert other.updates == learner.updates


def test_a_loss_that_is_no_number_ends_the_run_before_the_update() -> None:
    learner = learner_of(GSPO)
    batch = sft_batch("shared", [Example((5, 6, 7), (False, True, True), weight=float("nan"), tag="x")])
    before = [p.clone() for p in learner.policy.parameters()]
    learner.objective = replace(GSPO, loss="nll", estimator="none", per="token")
    with pytest.raises(DivergedError, match="the loss of update 0 is nan"):
        learner.update(batch)
    assert all(torch.equal(a, b) for a, b in zip(before, learner.policy.parameters(), strict=True))
