"""DAC's rewards and credit by hand: eq. 1 and 2, differences, groups, the imitation term's rows, and the losses' weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dac_episodes import FIRST, MORE, OTHER, RIGHT, SECOND, STOP, UNKNOWN, WRONG, dac, episode
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedJudge

from rolecast.credit import gae, group_advantages
from rolecast.folds import mean
from rolecast.methods.dac.credit import Verdicts, differences, evidence_value, generator_reward
from rolecast.reduction import item_weights
from rolecast.rollout.render import Renderer
from rolecast.schedule import check
from rolecast.types import ImitationTerm, PolicyTerm, Trajectory, Unit, ValueTerm


@pytest.mark.parametrize(
    ("sufficient", "abstained", "right", "cross", "answer", "sufficiency", "generator"),
    [
        (1, 0, 1, 1, 1, 1, 1),
        (1, 0, 0, 1, 0, 1, 0),  # the searcher is not blamed for the generator's mistake
        (1, 1, 0, 0, 0, 1, 0),  # evidence that is not accepted earns nothing; abstaining on it is wrong
        (0, 1, 0, 0, 0, 0, 1),
        (0, 0, 0, 0, 0, 0, 0),
        (0, 0, 1, 0, 1, 0, 1),  # right without evidence: nothing that the searcher did
        (None, 0, 1, None, 1, None, None),
        (None, 1, 0, None, 0, None, None),
        (1, None, None, None, None, 1, None),
        (0, None, None, 0, None, 0, None),  # nobody need be asked
        (1, 0.4, 0.2, 0.6, 0.2, 1, 0.2),  # means of samples
    ],
)
def test_rewards(
    sufficient: float | None, abstained: float | None, right: float | None, cross: float | None, answer: float | None,
    sufficiency: float | None, generator: float | None,
) -> None:  # fmt: skip
    of = Verdicts(sufficient, abstained, right)
    assert evidence_value(of, "cross") == (pytest.approx(cross) if cross is not None else None)
    assert evidence_value(of, "answer") == answer
    assert evidence_value(of, "sufficiency") == sufficiency
    assert generator_reward(of) == generator


def test_differences_by_hand() -> None:
    assert differences([]) == []
    assert differences([0, 1, 1, 0, 1]) == [0, 1, 0, -1, 1]
    assert differences([1]) == [1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_what_is_left_of_the_differences_is_the_last_value_less_the_one_before(values: list[float]) -> None:
    found = differences(values)
    for turn in range(len(values)):
        assert sum(found[turn:]) == pytest.approx(values[-1] - (values[turn - 1] if turn else 0.0))


# Units of whole episodes. First nothing bears on the question, then a fact is found, then the one with the answer.

SEARCHES = [WRONG, FIRST, SECOND, STOP]


def units(t: Trajectory, objective: str, **options: Any) -> list[Unit]:
    return [unit for unit in dac(**options).credit([t]) if unit.objective == objective]


def test_a_turn_earns_what_the_evidence_gained_by_it(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, SEARCHES, {"*": RIGHT})
    own = units(t, "searcher")
    assert [unit.reward for unit in own] == [0, 0, 1, 0]
    assert [unit.order for unit in own] == [0, 1, 2, 3]
    assert {unit.chain for unit in own} == {"g.0:searcher"}
    assert [unit.actions for unit in own] == [(action.id,) for action in t.threads_of("searcher")[0].actions]


def test_an_abstention_on_good_evidence_takes_what_the_search_had_earned(renderer: Renderer) -> None:
    """The probe after the third turn answers, the one after the fourth does not."""
    answers = {"*": RIGHT, "prefix=4": UNKNOWN}
    t, _, _ = episode(renderer, [WRONG, FIRST, SECOND, MORE], answers)
    assert [unit.reward for unit in units(t, "searcher")] == [0, 0, 1, -1]


def test_the_last_value_is_the_probes_and_not_the_episodes_own_answer(renderer: Renderer) -> None:
    """The sampled answers abstain, the greedy ones do not: the return of the whole is R(T) of the probes."""
    t, _, _ = episode(renderer, SEARCHES, {"*": UNKNOWN, "prefix=3": RIGHT})
    assert t.answer == UNKNOWN
    assert sum(unit.reward for unit in units(t, "searcher")) == 1
    t, _, _ = episode(renderer, SEARCHES, {"*": RIGHT, "prefix=3": UNKNOWN})
    assert sum(unit.reward for unit in units(t, "searcher")) == 0


def test_without_turn_rewards_all_is_earned_at_the_end_and_nothing_else_changes(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, SEARCHES, {"*": RIGHT}, dac(turn_rewards=False))
    [unit] = units(t, "searcher", turn_rewards=False)
    turns = units(t, "searcher")
    assert (unit.reward, unit.chain) == (sum(one.reward for one in turns), turns[0].chain)
    assert unit.actions == tuple(action for one in turns for action in one.actions)
    assert units(t, "generator", turn_rewards=False) == units(t, "generator")


def test_means_of_samples_instead_of_a_greedy_answer(renderer: Renderer) -> None:
    """Of three answers to the evidence after the first two turns two abstain; of three to all of it one does."""
    method = dac(prefix_answers="samples", searcher_reward="answer")
    answers = {"*": RIGHT, "prefix=1=0": OTHER, "prefix=1=1": OTHER, "prefix=1=2": RIGHT, "sample=2": OTHER}
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], answers, method)
    assert [unit.reward for unit in method.credit([t]) if unit.objective == "searcher"] == pytest.approx([1 / 3, 1 / 3, 0])
    answers = {"*": RIGHT, "sample=1": UNKNOWN}
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], answers, dac(prefix_answers="samples"))
    assert [unit.reward for unit in units(t, "searcher", prefix_answers="samples")] == pytest.approx([0, 2 / 3, 0])


@pytest.mark.parametrize(
    ("reward", "answers", "earned"),
    [
        ("cross", {"*": OTHER}, [0, 0, 1, 0]),
        ("answer", {"*": OTHER}, [0, 0, 0, 0]),
        ("answer", {"*": OTHER, "prefix=1": RIGHT}, [1, -1, 0, 0]),
        ("sufficiency", {"*": UNKNOWN}, [0, 0, 1, 0]),
        ("cross", {"*": UNKNOWN}, [0, 0, 0, 0]),
    ],
)
def test_what_the_searcher_is_rewarded_for(renderer: Renderer, reward: Any, answers: dict[str, str], earned: list[float]) -> None:
    t, _, _ = episode(renderer, SEARCHES, answers, dac(searcher_reward=reward))
    assert [unit.reward for unit in units(t, "searcher", searcher_reward=reward)] == earned
    assert units(t, "generator", searcher_reward=reward) == units(t, "generator")


def test_answers_are_compared_with_those_to_the_same_evidence(renderer: Renderer) -> None:
    answers = {"*": RIGHT, "sample=1": OTHER, "sample=2": UNKNOWN, "noisy=0": OTHER, "noisy=1": UNKNOWN}
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], answers)
    found: dict[str, list[float]] = {}
    for unit in units(t, "generator"):
        found.setdefault(unit.baseline, []).append(unit.reward)
    assert found == {"g.0:evidence": [1, 0, 0], "g.0:noisy": [0, 0, 1]}
    other, _, _ = episode(renderer, [FIRST, SECOND, STOP], answers, member=1)
    both = dac().credit([t, other])
    assert {unit.baseline for unit in both if unit.objective == "generator"} == {
        f"g.{m}:{e}" for m in (0, 1) for e in ("evidence", "noisy")
    }
    assert {unit.group for unit in both} == {"g"}


def test_abstaining_is_right_on_insufficient_evidence(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [FIRST, STOP], {"*": UNKNOWN, "sample=1": OTHER, "sample=2": RIGHT})
    assert [unit.reward for unit in units(t, "generator")] == [1, 0, 1]


def test_a_group_that_differs_in_nothing_has_no_advantage_and_the_searcher_learns_all_the_same(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, SEARCHES, {"*": RIGHT})
    assert set(group_advantages(units(t, "generator"), 1e-6).values()) == {0.0}
    own = units(t, "searcher")
    lengths = {action.id: len(action.ids) for action in t.actions}
    values = {unit.actions[0]: np.zeros(lengths[unit.actions[0]]) for unit in own}
    [objective, _] = dac().schedule()[1].objectives
    advantage = {id: adv for id, (adv, _) in gae(own, objective, lengths, values).items()}
    returns = [float(advantage[unit.actions[0]][0]) for unit in own]
    assert returns == [1, 1, 1, 0]  # R(T) − R(t−1)
    assert all(np.ptp(advantage[unit.actions[0]]) == 0 for unit in own)  # the same on every token of a turn


def test_the_order_of_a_group_changes_nothing(renderer: Renderer) -> None:
    group = [episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT, "sample=1": OTHER}, member=m)[0] for m in range(3)]
    there, back = dac().credit(group), dac().credit(group[::-1])
    assert sorted(there, key=lambda unit: unit.id) == sorted(back, key=lambda unit: unit.id)


# Eq. 7


def test_imitation_rows(renderer: Renderer) -> None:
    """Right on the evidence and wrong on the noisy one is what is shown: numbers 0 and 2, not 1 (wrong) and not 3 (right on both)."""
    method = dac(imitation=0.05, generator_samples=4)
    answers = {"": RIGHT, "sample=1": OTHER, "sample=2": "Kel  Dax", "sample=3": RIGHT, "noisy=3": RIGHT, "*": UNKNOWN}
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], answers, method)
    shown = method.examples([t])
    threads = {thread.key if thread.probe else "": thread for thread in t.threads_of("generator") + t.threads_of("generator", probe=True)}
    pairs = [("", "noisy=0"), ("sample=2", "noisy=2")]
    assert [example.ids for example in shown] == [threads[noisy].turns[0].ids + threads[clean].actions[0].ids for clean, noisy in pairs]
    assert [sum(example.trained) for example in shown] == [len(threads[clean].actions[0].ids) for clean, _ in pairs]
    assert all(example.trained[-1] and not example.trained[0] for example in shown)
    assert {(example.objective, example.group, example.tag) for example in shown} == {("generator", "g", "generator")}
    assert dac().examples([t]) == []  # off by default


@pytest.mark.parametrize(("sufficient", "rows"), [(1.0, 3), (0.0, 0), (None, 0)])
def test_imitation_only_where_the_evidence_is_sufficient(renderer: Renderer, sufficient: float | None, rows: int) -> None:
    method = dac(imitation=0.05, sufficiency="judge", turn_rewards=False)
    judge = ScriptedJudge(dac_sufficient=[sufficient])
    answers = {"*": RIGHT, **{f"noisy={n}": OTHER for n in range(3)}}
    t, _, _ = episode(renderer, [FIRST, STOP], answers, method, judge=judge)
    assert len(method.examples([t])) == rows


# Objectives and their denominators


def test_objectives() -> None:
    sft, rl = dac().schedule()
    assert (sft.trained, sft.merges, dict(sft.slots)) == (("shared",), ("shared",), {"searcher": "shared", "generator": "shared"})
    searcher, generator = rl.objectives
    clip = (0.2, 0.2)
    assert (searcher.slot, searcher.estimator, searcher.gamma, searcher.lam) == ("searcher", "gae", 1.0, 1.0)
    assert searcher.policy == PolicyTerm("token", clip, over=(mean("chain"), mean("batch")))
    assert (generator.slot, generator.estimator) == ("generator", "group")
    assert generator.policy == PolicyTerm("token", clip, over=(mean("baseline"), mean("batch")))
    assert searcher.critic == ValueTerm("critic", 1e-5)
    assert (searcher.kl, generator.kl, generator.imitation) == (None, None, None)
    assert (searcher.lr, generator.lr, rl.merges, rl.start) == (1e-6, 1e-6, (), "sft")
    check(dac().schedule(), dac().roles)


def test_each_role_has_a_rate_of_its_own_and_imitation_a_coefficient() -> None:
    searcher, generator = dac(searcher_lr=2e-6, generator_lr=1e-5, imitation=0.05).schedule()[1].objectives
    assert (searcher.lr, generator.lr, generator.imitation) == (2e-6, 1e-5, ImitationTerm(0.05))


def test_denominators_by_hand() -> None:
    """Searcher: 1/|y| of each episode, then the mean over episodes. Generator: all tokens of a group of answers, then the mean over groups."""
    searcher, generator = dac().schedule()[1].objectives
    assert searcher.policy is not None
    assert generator.policy is not None
    turns = [Unit(f"t{n}", (f"t{n}",), 0.0, "searcher", chain=chain, group="g", rollout=chain) for n, chain in enumerate("aab")]
    assert item_weights(turns, {"t0": 3, "t1": 5, "t2": 4}, searcher.policy.over) == {"t0": 1 / 16, "t1": 1 / 16, "t2": 1 / 8}
    said = [Unit(f"s{n}", (f"s{n}",), 0.0, "generator", baseline, f"s{n}", group="g") for n, baseline in enumerate("eenn")]
    weights = item_weights(said, {"s0": 2, "s1": 6, "s2": 5, "s3": 5}, generator.policy.over)
    assert weights == {"s0": 1 / 16, "s1": 1 / 16, "s2": 1 / 20, "s3": 1 / 20}
