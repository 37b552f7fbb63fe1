"""What joins credit, sampling, losses and update: each test fails if one of the joints is taken out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rows import act, cut_of, see, unit
from test_learner import GRPO, GSPO, PPO, learner_of, sampled_threads, units_of

from rolecast.errors import RatioGateError
from rolecast.folds import mean
from rolecast.learner import learner as learner_module
from rolecast.learner.batch import Padded, TokenBatch, action_lengths
from rolecast.learner.cut import Cut
from rolecast.learner.learner import Learner
from rolecast.learner.settings import Packing
from rolecast.learner.step import _scored, reinforce
from rolecast.learner.tally import Tally, mean_of
from rolecast.learner.terms import policy_loss, slopes_of
from rolecast.types import Action, Example, ImitationTerm, KlTerm, Objective, PolicyTerm, Thread, Unit, ValueTerm
from rolecast.weights.team import FROZEN


def moved_base(learner: Learner) -> Learner:
    """The frozen base differs from what is trained, so that a KL is not 0."""
    with torch.no_grad():
        for parameter in learner.team.model(FROZEN).parameters():
            parameter.mul_(3.0)
    return learner


def scored(learner: Learner, threads: list[Thread], units: list[Unit]) -> Cut:
    found = _scored(learner, learner.objectives[0], threads, units, [], action_lengths(threads))
    assert found is not None
    return found


def with_values(learner: Learner) -> Learner:
    """A critic that has an opinion."""
    with torch.no_grad():
        learner.team.heads["critic"].bias.fill_(0.25)
    return learner


def tokens_of(batch: TokenBatch, thread: Thread, column: str) -> np.ndarray:
    by_action = batch.by_action(column)
    return np.concatenate([by_action[action.id] for action in thread.actions])


def test_kl_in_the_reward_is_taken_from_every_token_up_to_the_end() -> None:
    """With γ = λ = 1 the return at a token is R − β Σ (log π_old − log π_ref) from there on."""
    objective = replace(PPO, kl=KlTerm(0.5, "reward"), minibatches=1)
    learner = moved_base(learner_of(objective))
    threads = sampled_threads(learner.team.model("shared"))
    batch = scored(learner, threads, units_of(threads)).batch
    for thread in threads:
        penalty = 0.5 * (tokens_of(batch, thread, "old_logprob") - tokens_of(batch, thread, "ref_logprob"))
        assert np.abs(penalty).max() > 1e-4
        expected = float(thread.id.split(".")[1]) - np.cumsum(penalty[::-1])[::-1]
        assert tokens_of(batch, thread, "target").tolist() == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.parametrize("objective", [replace(GRPO, kl=KlTerm(2.0)), replace(GSPO, kl=KlTerm(2.0))])
def test_a_kl_term_is_part_of_the_loss(objective: Objective) -> None:
    plain = replace(objective, kl=None, minibatches=1)
    anchored = replace(objective, minibatches=1)
    told = {}
    for o in (plain, anchored):
        learner = learner_of(o) if o.kl is None else moved_base(learner_of(o))
        threads = sampled_threads(learner.team.model("shared"))
        told[o.kl is None] = reinforce(learner, threads, units_of(threads))
    assert told[False]["kl"] > 1e-3
    assert told[False]["loss"] - told[True]["loss"] == pytest.approx(2.0 * told[False]["kl"], rel=1e-4)


@pytest.mark.parametrize("objective", [GRPO, GSPO, PPO])
def test_samples_of_other_numbers_are_corrected_by_their_importance(objective: Objective) -> None:
    """A sampler that found every token 1.5 times less likely than the trainer does: the loss counts 1.5 times."""
    losses = []
    for shift in (0.0, np.log(1.5), np.log(5.0)):
        learner = learner_of(replace(objective, minibatches=1, whiten=False))
        threads = sampled_threads(learner.team.model("shared"))
        for thread in threads:
            for place, turn in enumerate(thread.turns):
                if isinstance(turn, Action):
                    thread.turns[place] = replace(turn, logprobs=tuple(p - shift for p in turn.logprobs))
        # Questions with unlike numbers of rollouts, or the loss is 0 at a ratio of 1.
        units = [replace(unit, baseline="all", reward=unit.reward**2) for unit in units_of(threads)[1:]]
        losses.append(reinforce(learner, threads, units)["loss"])
    assert abs(losses[0]) > 1e-3
    assert losses[1] == pytest.approx(1.5 * losses[0], rel=1e-3)
    assert losses[2] == pytest.approx(2.0 * losses[0], rel=1e-3)  # truncated


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_trainer_computes_at_the_temperature_of_sampling(temperature: float) -> None:
    learner = learner_of(GRPO, temperature=temperature)
    threads = sampled_threads(learner.team.model("shared"), temperature=temperature)
    metrics = reinforce(learner, threads, units_of(threads), gate=1e-4)
    assert metrics["sampler_mismatch/max"] <= 1e-4
    other = learner_of(GRPO)
    assert reinforce(other, threads, units_of(threads))["sampler_mismatch/max"] > 1e-2


@pytest.mark.parametrize("objective", [GRPO, GSPO, PPO])
def test_the_update_computes_at_the_temperature_of_sampling(objective: Objective, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has moved between scoring and the first minibatch, so its ratios are 1, at every temperature."""
    monkeypatch.setattr(learner_module, "_is_one_pass", lambda of: False)
    learner = learner_of(replace(objective, minibatches=1), temperature=0.5)
    threads = sampled_threads(learner.team.model("shared"), temperature=0.5)
    metrics = reinforce(learner, threads, units_of(threads))
    assert (metrics["ratio"], metrics["clip_fraction"]) == (1.0, 0.0)


@pytest.mark.parametrize("objective", [GRPO, GSPO, PPO, replace(GRPO, kl=KlTerm(0.1))])
@pytest.mark.parametrize("packing", ["off", "prefixes"])
def test_one_pass_gives_what_scoring_and_an_update_give(objective: Objective, packing: Packing, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: metrics, mismatch with the sampler, also of what earlier weights sampled, and the new weights."""
    o = replace(objective, minibatches=1)
    told, weights, passes = [], [], []
    for once in (True, False):
        learner = with_values(learner_of(o)) if o.critic else learner_of(o)
        learner.packing = packing
        threads = sampled_threads(learner.team.model("shared"))
        stale = {action.id for action in threads[0].actions}
        forward, asked = learner.backend.forward, []
        learner.backend.forward = lambda slot, *given, asked=asked, forward=forward: asked.append(slot) or forward(slot, *given)  # type: ignore[method-assign, func-returns-value, misc]
        with monkeypatch.context() as patch:
            if not once:
                patch.setattr(learner_module, "_is_one_pass", lambda of: False)
            told.append(reinforce(learner, threads, units_of(threads), gate=1e-3, stale=stale))
        weights.append(learner.weights())
        passes.append(asked.count("shared"))
    assert told[0] == told[1]
    assert told[0]["stale"] > 0
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert 0 < passes[0] == passes[1] / 2


@pytest.mark.parametrize("objective", [GRPO, PPO])
def test_a_gate_that_one_pass_does_not_pass_is_shut_before_anything_moves(objective: Objective) -> None:
    learner = learner_of(replace(objective, minibatches=1))
    threads = sampled_threads(learner.team.model("shared"), temperature=2.0)
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    with pytest.raises(RatioGateError):
        reinforce(learner, threads, units_of(threads), gate=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.weights().items())


def test_the_reference_computes_at_the_temperature_of_sampling() -> None:
    """The frozen base is what training starts from, so their KL is 0, at every temperature."""
    learner = learner_of(replace(GRPO, kl=KlTerm(0.1)), temperature=0.5)
    threads = sampled_threads(learner.team.model("shared"), temperature=0.5)
    batch = scored(learner, threads, units_of(threads)).batch
    assert np.abs(batch.ref_logprob - batch.old_logprob).max() <= 1e-5
    assert batch.ref_logprob[batch.trained].max() < -1e-3


def test_advantages_are_whitened_over_all_action_tokens_where_the_objective_says_so() -> None:
    found = {}
    for whiten in (True, False):
        learner = with_values(learner_of(replace(PPO, whiten=whiten)))
        threads = sampled_threads(learner.team.model("shared"))
        batch = scored(learner, threads, units_of(threads)).batch
        found[whiten] = batch.advantage[batch.trained]
    assert found[True].mean() == pytest.approx(0, abs=1e-9)
    assert found[True].std() == pytest.approx(1, abs=1e-6)
    assert found[True] == pytest.approx((found[False] - found[False].mean()) / found[False].std(), abs=1e-6)


def test_a_critic_learns_returns_not_advantages() -> None:
    learner = with_values(learner_of(PPO))
    threads = sampled_threads(learner.team.model("shared"))
    batch = scored(learner, threads, units_of(threads)).batch
    for thread in threads:
        reward = float(thread.id.split(".")[1])
        assert tokens_of(batch, thread, "value").tolist() == pytest.approx([0.25] * len(tokens_of(batch, thread, "value")))
        assert tokens_of(batch, thread, "target").tolist() == pytest.approx([reward] * len(tokens_of(batch, thread, "target")))
        assert tokens_of(batch, thread, "advantage").tolist() == pytest.approx([reward - 0.25] * len(tokens_of(batch, thread, "value")))


def test_a_value_may_move_by_its_clip_only() -> None:
    """Half the tokens' old values lie 1 below what the critic says now: a loss of ½ (V_old + clip − R)² where that is larger."""
    found = []
    for clip in (0.2, 1e6):
        learner = with_values(learner_of(replace(PPO, critic=ValueTerm("critic", 1e-3, clip), minibatches=1)))
        threads = sampled_threads(learner.team.model("shared"))
        of = scored(learner, threads, units_of(threads))
        old = of.batch.value - 1.0 * of.batch.trained
        metrics = learner.update([replace(of, batch=replace(of.batch, value=old))])
        predicted, target = of.batch.value[of.batch.trained], of.batch.target[of.batch.trained]
        bounded = old[of.batch.trained] + np.clip(predicted - old[of.batch.trained], -clip, clip)
        expected = 0.5 * np.maximum((predicted - target) ** 2, (bounded - target) ** 2)
        assert metrics["critic/loss"] == pytest.approx(expected.mean(), rel=1e-5)
        found.append(metrics["critic/loss"])
    assert found[0] > found[1] * 1.05


def test_a_critics_loss_has_denominators_of_its_own() -> None:
    """Per unit where the policy's are per token: the gradient of the head's bias is the mean of V − R over rollouts."""
    critic = ValueTerm("critic", 1e-2, 1e6, over=(mean("unit"), mean("batch")))
    learner = with_values(learner_of(replace(PPO, critic=critic, minibatches=1)))
    threads = sampled_threads(learner.team.model("shared"))
    gradients: list[float] = []
    bias = learner.team.heads["critic"].bias
    learner.backend.step = lambda numbers: gradients.append(bias.grad.item()) or dict.fromkeys(numbers, 0.0)  # type: ignore[method-assign]
    learner.update([scored(learner, threads, units_of(threads))])
    assert gradients == [pytest.approx(0.25 - np.mean([0, 1, 2]), rel=1e-5)]  # longer rollouts earn more


def test_advantages_of_a_group_have_deviation_one() -> None:
    learner = learner_of(GRPO)
    threads = sampled_threads(learner.team.model("shared"))
    units = [replace(unit, reward=unit.reward * (10 if unit.group == "g0" else 0.1)) for unit in units_of(threads)]
    by_action = scored(learner, threads, units).batch.by_action("advantage")
    for group in ("g0", "g1"):
        # the middle one may have advantage 0, and no rows
        own = sorted(by_action[unit.actions[0]][0] for unit in units if unit.group == group and unit.actions[0] in by_action)
        assert (own[0], own[-1]) == pytest.approx((-np.sqrt(1.5), np.sqrt(1.5)), abs=1e-4)


def test_nothing_but_action_tokens_has_a_weight_in_any_term() -> None:
    objective = replace(PPO, kl=KlTerm(0.1), minibatches=2)
    learner = learner_of(objective)
    threads = sampled_threads(learner.team.model("shared"))
    batch = scored(learner, threads, units_of(threads)).batch
    sampled = np.concatenate([[isinstance(turn, Action)] * len(turn.ids) for thread in threads for turn in thread.turns])
    for name in ("policy_weight", "kl_weight", "value_weight"):
        assert ((getattr(batch, name) != 0) == sampled).all()


def test_a_saturating_batch_does_not_make_the_others_steps_longer() -> None:
    """Three of four questions are solved: the fourth one's gradient is what it was among four that vary."""
    gradients = []
    for solved in (set(), {"g1", "g2", "g3"}):
        learner = learner_of(replace(GRPO, minibatches=1))
        kept: dict[str, Any] = {}
        learner.backend.step = lambda numbers, kept=kept, learner=learner: (
            kept.update(  # type: ignore[misc,method-assign]
                {name: p.grad.clone() for name, p in learner.team.named_parameters() if p.grad is not None}
            )
            or dict.fromkeys(numbers, 0.0)
        )
        threads = sampled_threads(learner.team.model("shared"))
        units = units_of(threads)
        of_one = [replace(unit, reward=unit.reward if unit.group == "g0" else 0.0) for unit in units]
        if solved:
            reinforce(learner, threads, of_one)
        else:  # the same, with the other questions' rows in the batch
            learner_all = learner_of(replace(GRPO, minibatches=1, kl=KlTerm(1e-12)))
            learner_all.backend.step = lambda numbers, kept=kept, learner=learner_all: (
                kept.update(  # type: ignore[misc,method-assign]
                    {name: p.grad.clone() for name, p in learner.team.named_parameters() if p.grad is not None}
                )
                or dict.fromkeys(numbers, 0.0)
            )
            reinforce(learner_all, threads, of_one)
        gradients.append(kept)
    assert gradients[0].keys() == gradients[1].keys() != set()
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-6)


@pytest.mark.parametrize("policy", [GRPO.policy, PolicyTerm("unit", over=(mean("batch"),))])
def test_what_an_objective_imitates_is_no_part_of_its_ratios(policy: PolicyTerm) -> None:
    """Every action's ratio is e, and clipped; an example's tokens have none."""
    learner = learner_of(replace(GRPO, policy=policy, imitation=ImitationTerm(), minibatches=1))
    [o] = learner.objectives
    threads = sampled_threads(learner.team.model("shared"))
    units, shown = units_of(threads), [Example((5, 6, 7), (False, True, True), group="g0")]
    of = learner.score(learner.cut(o, threads, units, units, action_lengths(threads), shown))
    acted = of.batch.policy_weight != 0
    assert acted.sum() == of.batch.trained.sum() - 2
    batch = replace(of.batch, old_logprob=of.batch.old_logprob - acted, sampler_logprob=of.batch.old_logprob - acted, advantage=1.0 * acted)
    metrics = learner.update([replace(of, batch=batch)])
    assert metrics["ratio"] == pytest.approx(np.e, rel=1e-5)
    assert metrics["clip_fraction"] == metrics["clip_fraction/first"] == 1.0
    assert metrics["nll"] == pytest.approx(-of.batch.old_logprob[of.batch.trained & ~acted].mean(), rel=1e-5)


def test_no_reward_stands_behind_what_is_imitated() -> None:
    learner = learner_of(replace(PPO, imitation=ImitationTerm()), replace(GRPO, name="p", imitation=ImitationTerm(), lr=PPO.lr))
    threads = sampled_threads(learner.team.model("shared"))
    shown = [Example((5, 6, 7), (False, True, True), group="g0")]
    for o in learner.objectives:
        found = _scored(learner, o, threads, units_of(threads), shown, action_lengths(threads))
        assert found is not None
        for column in ("advantage", "target"):
            numbers = found.batch.by_action(column)
            assert numbers["example-0"].tolist() == [0.0, 0.0]
            assert any(np.any(of) for of in numbers.values()) or (column == "target" and o.critic is None)


def test_an_objective_without_the_term_imitates_nothing() -> None:
    learner = learner_of(GRPO)
    threads = sampled_threads(learner.team.model("shared"))
    units, shown = units_of(threads), [Example((5, 6, 7), (False, True, True), group="g0")]
    batch = learner.cut(GRPO, threads, units, units, action_lengths(threads), shown).batch
    assert not batch.imitation_weight.any()
    assert ((batch.policy_weight != 0) == (batch.trained & (batch.unit < len(units)))).all()


def test_an_objective_may_be_imitation_alone() -> None:
    learner = learner_of(Objective("o", "shared", 1e-2, imitation=ImitationTerm()))
    shown = [Example((5, 6, 7), (False, True, True), objective="o")]
    losses = [reinforce(learner, [], [], shown)["nll"] for _ in range(3)]
    assert losses[0] > losses[-1]


def test_an_objective_may_be_its_critic_alone() -> None:
    learner = learner_of(replace(PPO, policy=None, minibatches=1))
    threads = sampled_threads(learner.team.model("shared"))
    before = {name: tensor.clone() for name, tensor in learner.weights().items()}
    found = [reinforce(learner, threads, units_of(threads))["critic/loss"] for _ in range(5)]
    assert found[-1] < found[0]
    policy = {name for name, _ in learner.team.trained("shared")}
    assert {name for name, tensor in learner.weights().items() if torch.equal(tensor, before[name])} >= policy


def two_versions(batch: TokenBatch) -> TokenBatch:
    """A unit of two actions, the first sampled by earlier weights: log-probs of three tokens by sampler, trainer and now."""
    [first, second] = batch.actions
    batch = batch.with_actions("sampler_logprob", {first: np.array([-1.0, -2.0]), second: np.array([-0.5])})
    batch = batch.with_actions("old_logprob", {first: np.array([-1.2, -1.4]), second: np.array([-0.5])})
    return batch.with_actions("advantage", {first: np.array([2.0, 2.0]), second: np.array([2.0])})


NOW = torch.tensor([-1.1, -1.5, -0.2])


@pytest.mark.parametrize(
    ("policy", "loss", "ratio"),
    [
        # Ratios to `old`: e^0.1, e^-0.1, e^0.3, the last one clipped to 1.2. Importance of `old` over the sampler: e^-0.2, e^0.6, and 1 for the
        # action of the current weights. Loss: -2/3 (e^0.1 e^-0.2 + e^-0.1 e^0.6 + 1.2).
        (
            PolicyTerm("token", (0.2, 0.2)),
            -2 / 3 * (math.exp(-0.1) + math.exp(0.5) + 1.2),
            (math.exp(0.1) + math.exp(-0.1) + math.exp(0.3)) / 3,
        ),
        # The same, with importance bounded by 1.5: e^0.6 = 1.82 is.
        (
            PolicyTerm("token", (0.2, 0.2), importance_cap=1.5),
            -2 / 3 * (math.exp(-0.1) + 1.5 * math.exp(-0.1) + 1.2),
            (math.exp(0.1) + math.exp(-0.1) + math.exp(0.3)) / 3,
        ),
        # GSPO, normalised by length: s = e^((0.1 - 0.1 + 0.3) / 3) = e^0.1, importance e^((-0.2 + 0.6 + 0) / 3) = e^(0.4/3); one item.
        (PolicyTerm("unit", (0.2, 0.2)), -2 * math.exp(0.1) * math.exp(0.4 / 3), math.exp(0.1)),
        # Its clip is of the whole unit's ratio: e^0.1 = 1.105 beyond 1.05.
        (PolicyTerm("unit", (0.05, 0.05)), -2 * 1.05 * math.exp(0.4 / 3), math.exp(0.1)),
        (PolicyTerm("unit", (0.2, 0.2), importance_cap=1.1), -2 * math.exp(0.1) * 1.1, math.exp(0.1)),
    ],
)
def test_ratios_and_importance_by_hand_where_two_versions_sampled(policy: PolicyTerm, loss: float, ratio: float) -> None:
    o = replace(GRPO, policy=policy)
    threads = [Thread("t", "planner", "shared", turns=[see(1, 2), act("a", 4, 5), see(6), act("b", 7)])]
    found = cut_of(o, threads, [unit("u", "a", "b")])
    batch = two_versions(found.batch)
    rows = Padded.of(batch, [0], torch.device("cpu"))
    tally = Tally()
    told = policy_loss(o, batch, rows, (NOW, torch.zeros(3)), None, tally)
    assert told.item() == pytest.approx(loss, rel=1e-5)
    tally.read()
    assert mean_of([tally.pairs])["ratio"] == pytest.approx(ratio, rel=1e-5)
    if policy.ratio == "unit":  # and where the unit is cut apart
        slopes = slopes_of(policy, batch, np.array([0.0, 0, -1.1, -1.5, 0, -0.2]), np.array([2, 3, 5]), Tally())
        assert slopes.loss.sum() == pytest.approx(loss, rel=1e-5)


def test_the_gate_is_for_what_the_current_weights_sampled() -> None:
    learner = learner_of(GRPO)
    threads = sampled_threads(learner.team.model("shared"))
    old = [action.id for thread in threads for action in thread.actions if thread.id.startswith("0.")]
    for one in threads:
        for place, turn in enumerate(one.turns):
            if isinstance(turn, Action) and turn.id in old:
                one.turns[place] = replace(turn, logprobs=tuple(p - 0.3 for p in turn.logprobs))
    metrics = reinforce(learner, threads, units_of(threads), gate=1e-4, stale=frozenset(old))
    assert metrics["sampler_mismatch/max"] <= 1e-4
    assert metrics["stale"] == pytest.approx(len(old) / sum(len(one.actions) for one in threads))
    assert metrics["stale/shift"] == pytest.approx(math.expm1(0.3), rel=1e-3)
    with pytest.raises(RatioGateError):
        reinforce(learner, threads, units_of(threads), gate=1e-4, stale=frozenset(old[1:]))
