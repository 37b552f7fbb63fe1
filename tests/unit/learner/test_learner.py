"""Training of a tiny model on what it sampled itself: what moves, what is said about it, what is refused."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rows import UNITS_OF_GROUP
from transformers import PreTrainedModel

from rolecast.errors import ArtifactError, DivergedError, EmptyUpdateError, RatioGateError
from rolecast.folds import mean
from rolecast.learner import checkpoint
from rolecast.learner.backends import PlainBackend
from rolecast.learner.batch import action_lengths
from rolecast.learner.cut import Cut
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.settings import OptimizerConfig
from rolecast.learner.step import Mismatch, reinforce
from rolecast.ports import GenerateRequest, Sampling
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.scheduler import play
from rolecast.types import Action, Example, ImitationTerm, KlTerm, Objective, Observation, PolicyTerm, Thread, Unit, ValueTerm
from rolecast.weights.team import Casting
from tests.tiny import RENDERER, tiny_model, tiny_team

GSPO = Objective("o", "shared", 1e-3, "group", PolicyTerm("unit", (0.1, 0.1), over=UNITS_OF_GROUP), minibatches=2)
PPO = Objective("o", "shared", 1e-3, "gae", PolicyTerm(), critic=ValueTerm("critic", 1e-2), minibatches=2)
GRPO = replace(PPO, estimator="group", critic=None)
KL = replace(GRPO, kl=KlTerm(0.1))
GATE = 1e-4


def sampled_threads(model: PreTrainedModel, groups: int = 4, members: int = 3, temperature: float = 1.0) -> list[Thread]:
    """Threads of two turns each, sampled by the engine from `model`."""
    engine = TransformersEngine({"shared": model}, RENDERER, 16, 128, lockstep=True)  # type: ignore[dict-item]

    async def episode(group: int, member: int) -> Thread:
        thread = Thread(f"{group}.{member}", "planner", "shared")
        for turn in range(2):
            text = "planner question: Who is Bak Bam?" if turn == 0 else " memory"
            thread.turns.append(Observation(RENDERER.encode(text), text))
            done = await engine.generate(
                GenerateRequest(thread.ids, "shared", 3 + member, (), Sampling(temperature), 100 * group + 10 * member + turn)
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


def learner_of(
    *objectives: Objective, seed: int = 0, temperature: float = 1.0, max_tokens: int = 8192, casting: Casting | None = None
) -> Learner:
    slots = tuple(sorted({o.slot for o in objectives}))
    critics = tuple(sorted({o.critic.slot for o in objectives if o.critic}))
    anchored = any(o.kl for o in objectives)
    team = tiny_team(casting or Casting(frozenset(slots), slots, critics, anchored), seed)
    return make_learner(objectives, team, OptimizerConfig(), 10, 0, temperature=temperature, max_tokens=max_tokens)


def threads_of(learner: Learner, temperature: float = 1.0) -> list[Thread]:
    return sampled_threads(learner.team.model("shared"), temperature=temperature)


def copied(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.weights().items()}


def unchanged(learner: Learner, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in learner.weights().items())


def scored(learner: Learner, threads: list[Thread], units: list[Unit]) -> Cut:
    [o] = learner.objectives
    return learner.score(learner.cut(o, threads, units, units, action_lengths(threads)))


@pytest.mark.parametrize("objective", [GSPO, PPO, GRPO])
def test_sampler_and_trainer_agree_and_the_first_minibatch_has_ratio_one(objective: Objective) -> None:
    learner = learner_of(replace(objective, minibatches=1))
    threads = threads_of(learner)
    metrics = reinforce(learner, threads, units_of(threads), gate=GATE)
    assert metrics["sampler_mismatch/max"] <= 1e-4
    assert metrics["ratio"] == 1.0  # both sides are computed in one cut
    assert metrics["clip_fraction"] == 0.0


def test_later_minibatches_clip() -> None:
    learner = learner_of(replace(GSPO, lr=3e-2, minibatches=4))
    threads = threads_of(learner)
    metrics = reinforce(learner, threads, units_of(threads), gate=GATE)
    assert metrics["clip_fraction"] > 0
    assert metrics["clip_fraction/first"] == 0


@pytest.mark.parametrize("objective", [GSPO, PPO])
def test_the_ratio_gate_stops_a_run_whose_engine_has_other_weights(objective: Objective) -> None:
    learner = learner_of(objective)
    threads = sampled_threads(tiny_model(seed=1))
    before = copied(learner)
    with pytest.raises(RatioGateError, match="trainer and sampler disagree"):
        reinforce(learner, threads, units_of(threads), gate=GATE)
    assert unchanged(learner, before)
    reinforce(learner, threads, units_of(threads), gate=None)  # off-policy samples are corrected, not refused


def spoiled(threads: list[Thread], logprob: float, every: int) -> list[Thread]:
    """Every so many actions have another log-prob at their first token."""
    count = 0
    for thread in threads:
        for place, turn in enumerate(thread.turns):
            if isinstance(turn, Action):
                if count % every == 0:
                    thread.turns[place] = replace(turn, logprobs=(logprob, *turn.logprobs[1:]))
                count += 1
    return threads


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf])
def test_a_log_prob_that_is_no_number_does_not_pass_the_gate(logprob: float) -> None:
    """It is no mismatch to be weighed: the update is left out."""
    learner = learner_of(GSPO)
    before = copied(learner)
    threads = spoiled(threads_of(learner), logprob, 5)
    assert reinforce(learner, threads, units_of(threads), gate=GATE) == {"refused": 1.0}
    assert unchanged(learner, before)


def test_one_token_far_off_is_caught_by_the_tail() -> None:
    learner = learner_of(GRPO)
    threads = threads_of(learner)
    right = threads[0].actions[0].logprobs[0]
    with pytest.raises(RatioGateError, match=r"99\.9% quantile"):
        reinforce(learner, spoiled(threads, right - 5e-3, 10**6), units_of(threads), gate=GATE)


def test_where_no_token_has_a_policys_weight_nothing_disagrees() -> None:
    """As in a step that has examples alone."""
    learner = learner_of(SFT)
    batch = learner.cut(SFT, [], [], [], {}, [Example((5, 6, 7), (False, True, True), tag="x")]).batch
    assert Mismatch.of(batch) == Mismatch(0.0, 0.0, 0.0)


def test_equal_rewards_are_an_error_and_change_nothing() -> None:
    learner = learner_of(GSPO)
    before = copied(learner)
    threads = threads_of(learner)
    with pytest.raises(EmptyUpdateError, match="rewards are equal"):
        reinforce(learner, threads, units_of(threads, "same"))
    assert unchanged(learner, before)


def gradient(objective: Objective, max_tokens: int) -> torch.Tensor:
    """Gradient of one minibatch over the whole batch, cut into micro-batches of `max_tokens`."""
    learner = learner_of(replace(objective, minibatches=1), max_tokens=max_tokens)
    threads = threads_of(learner)
    learner.backend.step = lambda numbers: dict.fromkeys(numbers, 0.0)  # type: ignore[method-assign]
    reinforce(learner, threads, units_of(threads))
    return torch.cat([p.grad.flatten() for p in learner.team.parameters() if p.grad is not None])


@pytest.mark.parametrize("objective", [GSPO, GRPO, replace(GRPO, policy=PolicyTerm(over=(mean("unit"), mean("batch"))))])
def test_gradient_does_not_depend_on_how_micro_batches_are_cut(objective: Objective) -> None:
    whole, cut = gradient(objective, 1 << 20), gradient(objective, 64)
    assert whole.abs().max() > 0
    assert torch.allclose(whole, cut, atol=1e-6)


@pytest.mark.parametrize("policy", [GSPO.policy, GRPO.policy])
def test_an_update_raises_the_probability_of_the_better_rollouts(policy: PolicyTerm) -> None:
    learner = learner_of(replace(GSPO, policy=policy, lr=3e-3, minibatches=1))
    threads = threads_of(learner)
    units = units_of(threads)
    before = scored(learner, threads, units).batch
    reinforce(learner, threads, units)
    change = scored(learner, threads, units).batch.old_logprob - before.old_logprob
    moved = {m: change[np.isin(before.unit, [i for i, u in enumerate(units) if u.id.endswith(f".{m}")])].sum() for m in (0, 2)}
    assert moved[2] > 0 > moved[0]


def test_tokens_that_were_not_sampled_are_not_trained() -> None:
    learner = learner_of(GSPO)
    threads = threads_of(learner)
    batch = scored(learner, threads, units_of(threads)).batch
    observed = sum(len(turn.ids) for thread in threads for turn in thread.turns if isinstance(turn, Observation))
    assert (~batch.trained).sum() == observed
    assert batch.trained.sum() == sum(len(action.ids) for thread in threads for action in thread.actions)


def test_ppo_trains_the_critic_towards_the_returns() -> None:
    learner = learner_of(replace(PPO, minibatches=1, lr=1e-9, critic=ValueTerm("critic", 2e-3)))
    threads = threads_of(learner)
    losses = [reinforce(learner, threads, units_of(threads))["critic/loss"] for _ in range(16)]
    assert losses[-1] < 0.7 * losses[0]


def imitate(learner: Learner, rows: list[Example]) -> dict[str, float]:
    [o] = learner.objectives
    return learner.update([learner.cut(o, [], [], [], {}, rows)])


SFT = Objective("sft", "shared", 1e-2, imitation=ImitationTerm())


def test_sft_learns_a_row_and_only_its_trained_tokens() -> None:
    learner = learner_of(SFT)
    ids = RENDERER.encode("planner question: Who is Bak Bam?")
    row = Example(ids, tuple(i >= len(ids) - 3 for i in range(len(ids))), tag="planner")
    losses = [imitate(learner, [row])["nll"] for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]
    assert learner.cut(SFT, [], [], [], {}, [row]).batch.trained.sum() == 3


def test_a_rows_weight_scales_its_loss() -> None:
    row = Example((5, 6, 7), (False, True, True), tag="x")
    once, half = (imitate(learner_of(SFT), [replace(row, weight=weight)])["loss"] for weight in (1.0, 0.5))
    assert half == pytest.approx(once / 2)


def test_an_imitation_terms_coefficient_scales_its_loss() -> None:
    row = Example((5, 6, 7), (False, True, True), tag="x")
    once, half = (imitate(learner_of(replace(SFT, imitation=ImitationTerm(share))), [row])["loss"] for share in (1.0, 0.5))
    assert half == pytest.approx(once / 2)


def test_state_survives_a_round_trip(tmp_path: Path) -> None:
    """Policy, critic with its head, moments and the place in the schedule."""
    learner = learner_of(PPO)
    threads = threads_of(learner)
    reinforce(learner, threads, units_of(threads))
    learner.save(tmp_path)
    learner.team.save(learner.slots, tmp_path)
    other = learner_of(PPO)
    other.load_weights(other.team.read(tmp_path, other.slots))
    other.load(tmp_path)
    more = threads_of(learner)
    for one in (learner, other):
        reinforce(one, more, units_of(more))
    assert unchanged(learner, copied(other))
    assert other.updates == learner.updates == {"shared": 4, "critic": 4}


def test_shards_of_another_number_of_ranks_are_refused(tmp_path: Path) -> None:
    learner = learner_of(SFT)
    learner.save(tmp_path)
    (tmp_path / "learner.json").write_text('{"updates": {"shared": 3}, "world": 2, "backend": "plain torch"}')
    learner.load(tmp_path)  # whole states fit every number
    assert learner.updates == {"shared": 3}
    learner.backend.sharded = True
    with pytest.raises(ArtifactError, match="was written by 2 ranks, this job has 1"):
        learner.load(tmp_path)


def test_weights_put_back_are_the_critics_too() -> None:
    learner = learner_of(PPO)
    before = copied(learner)
    threads = threads_of(learner)
    reinforce(learner, threads, units_of(threads))
    moved = {name.partition(".")[0] for name, tensor in learner.weights().items() if not torch.equal(tensor, before[name])}
    assert moved == {"base", "whole", "heads"}
    learner.load_weights(before)
    assert unchanged(learner, before)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_loss_that_is_no_number_leaves_its_update_out_and_too_many_end_the_run(weight: float) -> None:
    learner, kept = learner_of(SFT), []
    learner.keep = kept.append
    before = copied(learner)
    spoilt = Example((5, 6, 7), (False, True, True), weight=weight, tag="x")
    sound = replace(spoilt, weight=1.0)
    for _ in range(2):
        assert imitate(learner, [spoilt])["refused"] == 1
    assert unchanged(learner, before)
    assert learner.updates == {"shared": 2}  # the schedule goes on
    assert imitate(learner, [sound])["refused"] == 0  # and the count begins anew
    assert not unchanged(learner, before)
    before = copied(learner)
    for _ in range(2):
        imitate(learner, [spoilt])
    with pytest.raises(DivergedError, match="slot shared: 3 updates in a row were not finite, the last because the loss of objective sft"):
        imitate(learner, [spoilt])
    assert unchanged(learner, before)
    assert [one.name for one in kept] == [f"update-{n:06d}.shared.{row}" for n, row in ((0, 1), (1, 2), (3, 1), (4, 2), (5, 3))]


def test_what_a_refused_update_would_have_learned_from_can_be_looked_into(tmp_path: Path) -> None:
    learner = learner_of(SFT)
    learner.keep = lambda refusal: refusal.write(tmp_path)
    imitate(learner, [Example((5, 6, 7), (False, True, True), weight=math.nan, tag="x")])
    told = json.loads((tmp_path / "refusal.json").read_text())
    assert told == {
        "slot": "shared", "update": 0, "reason": "the loss of objective sft is no finite number on 1 of 1 ranks", "objectives": ["sft"]
    }  # fmt: skip
    batch = np.load(tmp_path / "sft.npz")
    assert batch["ids"].tolist() == [5, 6, 7]
    assert np.isnan(batch["imitation_weight"][1:]).all()


@pytest.mark.parametrize(("column", "o"), [("old_logprob", GRPO), ("sampler_logprob", GRPO), ("ref_logprob", KL), ("value", PPO)])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_log_probs_and_values_that_are_no_numbers_leave_the_update_out(column: str, o: Objective, number: float) -> None:
    learner, kept = learner_of(o), []
    learner.keep = kept.append
    threads = threads_of(learner)
    before = copied(learner)
    score = Learner.score

    def spoiling(self: Learner, of: Cut, sparing: bool) -> Cut:
        found = score(self, of)
        spoilt = getattr(found.batch, column).copy()
        spoilt[np.flatnonzero(found.batch.trained)[3]] = number
        return replace(found, batch=replace(found.batch, **{column: spoilt}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "score", spoiling)
        for _ in range(2):
            assert reinforce(learner, threads, units_of(threads), gate=None) == {"refused": 1.0}
        with pytest.raises(DivergedError, match=f"have no finite {column}"):
            reinforce(learner, threads, units_of(threads), gate=1.0)  # nor is it a mismatch that a gate weighs
    assert unchanged(learner, before)
    assert len(kept) == 3
    assert kept[0].reason.startswith("1 of ")
    assert reinforce(learner, threads, units_of(threads))["refused"] == 0


def test_a_ratio_that_is_no_number_is_not_hidden_by_its_bound() -> None:
    """The log-prob of one token becomes −inf between scoring and update; the bounded ratio would be e^−20, and finite."""
    learner = learner_of(GRPO)
    threads = threads_of(learner)
    before, forward = copied(learner), learner.backend.forward

    def spoiling(*arguments: Any) -> Any:
        logprob, entropy = forward(*arguments)
        if torch.is_grad_enabled():
            logprob = torch.cat([logprob[:-1], logprob[-1:] - math.inf])
        return logprob, entropy

    learner.backend.forward = spoiling  # type: ignore[method-assign]
    assert reinforce(learner, threads, units_of(threads))["refused"] == 1
    assert unchanged(learner, before)


def test_a_learner_that_goes_on_counts_refused_updates_on(tmp_path: Path) -> None:
    learner = learner_of(SFT)
    spoilt = Example((5, 6, 7), (False, True, True), weight=math.nan, tag="x")
    for _ in range(2):
        imitate(learner, [spoilt])
    learner.save(tmp_path)
    again = learner_of(SFT)
    again.load(tmp_path)
    with pytest.raises(DivergedError):
        imitate(again, [spoilt])


def test_moments_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    learner = learner_of(SFT)
    imitate(learner, [Example((5, 6, 7), (False, True, True), tag="x")])
    assert isinstance(learner.backend, PlainBackend)
    [part] = learner.backend.optimizers["shared"].parts
    next(iter(part.state.values()))["exp_avg"].view(-1)[0] = math.inf
    with pytest.raises(DivergedError, match=r"exp_avg is not finite on rank 0, so it is not saved"):
        checkpoint.save(tmp_path, 1, learner, {}, keep=1)
    assert not list(tmp_path.iterdir())


def test_progress_that_is_no_number_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        checkpoint.save(tmp_path, 1, learner_of(SFT), {"score": math.nan}, keep=1)
    assert checkpoint.newest(tmp_path) is None


class Exploding:
    """A hook that makes the slot's gradients infinite while `on`."""

    def __init__(self, learner: Learner, slot: str) -> None:
        self.on = True
        [(_, parameter), *_] = learner.team.trained(slot)
        parameter.register_hook(lambda gradient: gradient * math.inf if self.on else gradient)


@pytest.mark.parametrize("slot", ["shared", "critic"])
def test_a_gradient_that_is_no_number_is_not_applied_and_too_many_end_the_run(slot: str) -> None:
    learner = learner_of(replace(PPO, minibatches=1))
    threads = threads_of(learner)
    reinforce(learner, threads, units_of(threads))
    explosion, before = Exploding(learner, slot), copied(learner)
    metrics = reinforce(learner, threads, units_of(threads))
    assert metrics["refused" if slot == "shared" else "critic/refused"] == 1
    own = {name for name, _ in learner.team.trained(slot)}
    after = learner.weights()
    assert all(torch.equal(after[name], before[name]) == (name in own) for name in own | {"heads.critic.bias"} if name in after)
    reinforce(learner, threads, units_of(threads))
    with pytest.raises(
        DivergedError, match=f"slot {slot}: 3 updates in a row were not finite, the last because the gradient's norm is (inf|nan)"
    ):
        reinforce(learner, threads, units_of(threads))
    explosion.on = False
    assert all(torch.isfinite(tensor).all() for tensor in learner.weights().values())
    assert math.isfinite(reinforce(learner, threads, units_of(threads))["grad_norm"])


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    learner = learner_of(SFT)
    with torch.no_grad():
        next(learner.team.parameters())[0, 0] = math.nan
    with pytest.raises(DivergedError, match="is not finite, so it is neither saved nor published"):
        learner.team.save(learner.slots, tmp_path, learner.weights())


def test_an_anchor_keeps_units_without_advantage_in_the_batch() -> None:
    anchored = learner_of(replace(GRPO, kl=KlTerm(0.1)))
    threads = threads_of(anchored)
    units = [replace(unit, reward=1.0) if unit.group == "g0" else unit for unit in units_of(threads)]
    kl = reinforce(anchored, threads, units)
    assert kl["kl"] == pytest.approx(0.0, abs=1e-3)


def test_state_of_another_backend_is_refused_by_name(tmp_path: Path) -> None:
    learner = learner_of(SFT)
    learner.save(tmp_path)
    learner.backend.name = "DeepSpeed, ZeRO-2"
    with pytest.raises(ArtifactError, match="holds the optimizer's state of plain torch, and this job trains with DeepSpeed, ZeRO-2"):
        learner.load(tmp_path)


def test_damaged_checkpoints_and_links_among_them_end_nothing(tmp_path: Path) -> None:
    learner = learner_of(SFT)
    for step in (1, 2, 3):
        checkpoint.save(tmp_path / "checkpoints", step, learner, {"seen": step}, keep=9)
    folder = tmp_path / "checkpoints"
    (folder / "step-000002" / "progress.json").unlink()
    (folder / "step-000009").symlink_to(folder / "step-000001")
    (folder / "step-notes").mkdir()
    assert [found.progress for found in checkpoint.all_of(folder)] == [{"seen": 1}, {"seen": 3}]
    (folder / "step-000003" / "progress.json").write_text("{")
    found = checkpoint.newest(folder)
    assert found is not None
    assert found.step == 1
    checkpoint.save(folder, 4, learner, {}, keep=1)
    assert (folder / "step-000001").exists() is False
    assert (folder / "step-000009").is_symlink()
