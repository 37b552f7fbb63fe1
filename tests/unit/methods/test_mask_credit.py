"""M-ASK's rewards (eq. 2-3), returns (eq. 5 and ours) and what of it is trained, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mask_episodes import END, PLAN, SCRIPT, actions, answered, episode, mask, plan
from scripted import EMPLOYER, MENTOR, TWO_HOPS

from rolecast.credit import gae, whiten
from rolecast.learner.batch import action_lengths, make_batch
from rolecast.methods.mask.scoring import worth
from rolecast.methods.mask.state import UNKNOWN
from rolecast.rollout.render import Renderer
from rolecast.stages.sampling import Credited, shuffled
from rolecast.tags import tagged
from rolecast.types import Action, Gold, Question, Reward, Thread, Trajectory

# The gold answer is "Kel Dax": F1 of "Kel" is 2/3, of "Kel Dax Kol" 4/5, of "Vrek Stom" 0.


def play(renderer: Renderer, answers: Sequence[str], first: str = UNKNOWN, end: bool = True, member: int = 0, **options: Any) -> Trajectory:
    """An episode with one turn for each answer; answers[t − 1] is a_t."""
    turns = len(answers)
    script = {
        "planning": [plan((MENTOR.query, UNKNOWN), answer=first)],
        "search": [tagged("search", f"query {n}") for n in range(turns)] + [END] * end,
        "summary": [tagged("evidence", "A is B.")] * turns,
        "update": [tagged("Update", "t1")] * turns,
        "answer": [answered(text) for text in (answers[-1], *answers[:-1])],
    }
    t, engine, _ = episode(renderer, script, mask(max_turns=5 if end else turns, **options), member=member)
    assert engine.unsaid == []
    return t


def earned(t: Trajectory, name: str) -> dict[str, float | None]:
    return {reward.on.removeprefix("g.0/").removesuffix("#0"): reward.value for reward in t.rewards if reward.name == name}


# Rewards


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("Kel Dax", ("Kel Dax",), 1.0),
        ("Kel", ("Kel Dax",), 2 / 3),
        ("Kel Dax Kol", ("Vrek Stom", "Kel Dax"), 4 / 5),
        ("Vrek", ("Kel Dax",), 0.0),
        (None, ("Kel Dax",), 0.0),
        ("yes", ("yes",), 1.0),
        ("no", ("yes",), 0.0),
        ("Yes.", ("yes",), 1.0),
        ("yes indeed", ("yes", "yes it is"), 0.0),  # exact match where a gold says yes or no; F1 would be 2/5
        ("it is", ("no", "it is not"), 0.0),
    ],
)
def test_an_answer_is_worth_its_f1_and_of_yes_and_no_its_match(answer: str | None, golds: tuple[str, ...], expected: float) -> None:
    assert worth(answer, golds) == pytest.approx(expected)


def test_equations_2_and_3(renderer: Renderer) -> None:
    t = play(renderer, ["Vrek", "Kel Dax Kol", "Kel Dax"], first="Kel")
    assert earned(t, "f1") == pytest.approx({"planning.t=0": 2 / 3, "probe/answer.t=1": 0.0, "probe/answer.t=2": 4 / 5, "answer.t=3": 1.0})
    gains = {1: -2 / 3, 2: 4 / 5, 3: 1 / 5}
    expected = {f"{role}.t={turn}": gain for turn, gain in gains.items() for role in ("search", "summary", "update")}
    assert earned(t, "gain") == pytest.approx({**expected, "search.t=4": 0.0})
    assert earned(t, "format") == {}
    assert {reward.name: reward.value for reward in t.rewards if reward.on == t.id} == {"team.em": 1.0, "team.f1": 1.0}


def test_the_end_earns_nothing_whatever_the_answer_is(renderer: Renderer) -> None:
    for answer in ("Kel Dax", "Vrek"):
        assert earned(play(renderer, [answer]), "gain")["search.t=2"] == 0.0
    t, _, _ = episode(renderer, {**SCRIPT, "search": [END], "answer": [answered("Kel Dax")]})
    assert (earned(t, "gain"), earned(t, "f1")) == ({"search.t=1": 0.0}, {"planning.t=0": 0.0, "answer.t=0": 1.0})


def test_without_planning_the_first_gain_is_from_nothing(renderer: Renderer) -> None:
    script = {**SCRIPT, "update": [tagged("Add", "t1"), tagged("Add", "t2")], "answer": [answered("Kel Dax"), answered("Kel")]}
    t, _, _ = episode(renderer, script, mask(planning=False))
    assert earned(t, "gain") == pytest.approx(
        {f"{role}.t={n}": gain for n, gain in ((1, 2 / 3), (2, 1 / 3)) for role in ("search", "summary", "update")} | {"search.t=3": 0}
    )


@pytest.mark.parametrize(("gold", "said", "expected"), [("yes", "yes", 1.0), ("yes", "no", 0.0), ("no", "no", 1.0)])
def test_yes_and_no_are_right_or_wrong(renderer: Renderer, gold: str, said: str, expected: float) -> None:
    question = replace(TWO_HOPS, gold=replace(TWO_HOPS.gold, answers=(gold,)))
    t, _, _ = episode(renderer, {**SCRIPT, "answer": [answered(said), answered("unknown")]}, question=question)
    assert (earned(t, "f1")["answer.t=2"], earned(t, "gain")["update.t=2"]) == (expected, expected)


def test_a_question_without_gold_answers_is_unscored(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, question=Question("q", "Which?", Gold(())))
    assert t.rewards == []
    assert mask().credit([t]) == []


def test_outside_of_training_a_turn_whose_answer_nobody_gave_has_no_gain(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, phase="eval")
    assert earned(t, "gain") == {"search.t=3": 0.0}
    assert earned(t, "f1") == {"planning.t=0": 0.0, "answer.t=2": 1.0}
    assert mask(credit="across_steps").credit([t]) == []


@given(st.lists(st.sampled_from(["Kel", "Kel Dax", "Vrek", "Dax Kol"]), min_size=1, max_size=5), st.sampled_from(["unknown", "Kel"]))
def test_gains_telescope(renderer: Renderer, answers: list[str], first: str) -> None:
    t = play(renderer, answers, first, end=len(answers) < 5)
    gold = TWO_HOPS.gold.answers
    total = sum(value or 0 for on, value in earned(t, "gain").items() if on.startswith("update"))
    assert total == pytest.approx(worth(answers[-1], gold) - worth(first, gold))


# Credit


def returns(t: Trajectory, **options: Any) -> dict[str, float]:
    """What a reply's first token is followed by, γ = λ = 1, with a critic that says 0."""
    method = mask(**options)
    units, lengths = method.credit([t]), action_lengths(t.threads)
    [objective] = method.schedule()[1].objectives
    zero = {action: np.zeros(length) for action, length in lengths.items()}
    found = gae(units, objective, lengths, zero)
    return {action.removeprefix("g.0/").removesuffix("#0"): float(back[0]) for action, (_, back) in found.items()}


LOOP = ("search", "summary", "update")


def table(planning: float, turns: Sequence[tuple[float, float]], end: float) -> dict[str, float]:
    """`turns`: what search, summary and update return, and the turn's answer; the last one is the episode's own."""
    found = {"planning.t=0": planning, f"search.t={len(turns) + 1}": end}
    for n, (loop, answer) in enumerate(turns, 1):
        found |= {f"{role}.t={n}": loop for role in LOOP} | {f"{'probe/' if n < len(turns) else ''}answer.t={n}": answer}
    return found


def test_by_default_each_reply_is_a_return_of_its_own(renderer: Renderer) -> None:
    t = play(renderer, ["Vrek", "Kel Dax Kol", "Kel Dax"], first="Kel")
    assert returns(t) == pytest.approx(table(2 / 3, [(-2 / 3, 0), (4 / 5, 4 / 5), (1 / 5, 1)], 0))


def test_across_steps_the_loop_returns_all_gains_that_follow(renderer: Renderer) -> None:
    t = play(renderer, ["Vrek", "Kel Dax Kol", "Kel Dax"], first="Kel")
    # From turn t on: F1(a_3) − F1(a_{t−1}); planning and answers as by default.
    assert returns(t, credit="across_steps") == pytest.approx(table(2 / 3, [(1 / 3, 0), (1, 4 / 5), (1 / 5, 1)], 0))


def test_equation_5_to_the_letter_adds_up_everything_that_follows(renderer: Renderer) -> None:
    t = play(renderer, ["Vrek", "Kel Dax"], first="Kel")
    # In time: planning 2/3; three of −2/3, answer 0; three of 1, answer 1; the end 0.
    found = returns(t, credit="faithful_eq5")
    expected = {
        "planning.t=0": 2 / 3 - 2 + 0 + 3 + 1,
        "search.t=1": -2 + 4, "summary.t=1": -4 / 3 + 4, "update.t=1": -2 / 3 + 4, "probe/answer.t=1": 4,
        "search.t=2": 4, "summary.t=2": 3, "update.t=2": 2, "answer.t=2": 1, "search.t=3": 0,
    }  # fmt: skip
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("credit", "preference"), [("per_response", 0.0), ("across_steps", 0.0), ("faithful_eq5", 1.0)])
def test_only_equation_5_prefers_searching_on_after_a_right_answer(renderer: Renderer, credit: str, preference: float) -> None:
    """The second search's return, where the first turn's answer was right: one more turn that keeps it right, against the end."""
    on = returns(play(renderer, ["Kel Dax", "Kel Dax"]), credit=credit)["search.t=2"]
    ended = returns(play(renderer, ["Kel Dax"]), credit=credit)["search.t=2"]
    assert on - ended == pytest.approx(preference)
    longer = returns(play(renderer, ["Kel Dax"] * 4), credit=credit)["search.t=2"]
    assert longer - ended == pytest.approx(3 * preference)


def test_final_rewards_give_every_reply_the_last_answers_f1(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, {**SCRIPT, "answer": [answered("Kel")]}, mask(rewards="final"))
    found = returns(t, rewards="final")
    assert found == {name: pytest.approx(2 / 3) for name in found}
    assert len(found) == 9


FAULTY: Mapping[str, Sequence[str]] = {**SCRIPT, "update": ["Update t1", SCRIPT["update"][1]]}


def test_a_fault_costs_one_and_the_others_earn_what_came_of_it(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, FAULTY)
    assert returns(t) == pytest.approx({**table(0, [(0, 0), (1, 1)], 0), "update.t=1": -1})


def test_a_faulty_answer_costs_one_and_is_measured_all_the_same(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, {**SCRIPT, "answer": ["Kel Dax", answered("Vrek Stom")]})
    assert returns(t) == pytest.approx({**table(0, [(0, 0), (1, 1)], 0), "answer.t=2": 1 - 1})
    final, _, _ = episode(renderer, {**SCRIPT, "answer": ["Kel Dax"]}, mask(rewards="final"))
    assert returns(final, rewards="final")["answer.t=2"] == 0
    assert returns(final, rewards="final")["search.t=1"] == 1


def test_across_steps_no_earlier_reply_is_to_blame_for_a_fault(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, FAULTY)
    assert returns(t, credit="across_steps") == pytest.approx({**table(0, [(1, 0), (1, 1)], 0), "update.t=1": 1 - 1})


def test_across_steps_the_gain_of_a_turn_of_faults_goes_to_the_replies_before(renderer: Renderer) -> None:
    script = {
        **SCRIPT,
        "search": [SCRIPT["search"][0], EMPLOYER.query, END],
        "summary": [SCRIPT["summary"][0], "x"],
        "update": [SCRIPT["update"][0], "x"],
    }
    t, _, _ = episode(renderer, script)
    expected = {**table(0, [(1, 0), (1 - 1, 1)], 0)}
    assert returns(t, credit="across_steps") == pytest.approx(expected)
    first = {**script, "search": [MENTOR.query, *SCRIPT["search"][1:]], "summary": ["x", "x"], "update": ["x", "x"]}
    t, _, _ = episode(renderer, first)
    assert {name: value for name, value in returns(t, credit="across_steps").items() if name.endswith("t=1")} == pytest.approx(
        {"probe/answer.t=1": 0.0, "search.t=1": 1 - 1, "summary.t=1": 1 - 1, "update.t=1": 1 - 1}
    )


@pytest.mark.parametrize("credit", ["per_response", "across_steps", "faithful_eq5"])
def test_every_reply_is_in_one_unit_and_probes_are_trained_like_the_rest(renderer: Renderer, credit: str) -> None:
    t, _, _ = episode(renderer)
    units = mask(credit=credit).credit([t])
    assert sorted(action for unit in units for action in unit.actions) == sorted(action.id for action in t.actions)
    batch = make_batch("shared", t.threads, units)
    [probe] = actions(t, "answer", probe=True)
    assert probe.id in batch.actions
    assert len(batch.by_action("advantage")[probe.id]) == len(probe.ids)
    assert {(unit.objective, unit.group, unit.rollout) for unit in units} == {("mask", "g", t.id)}
    assert {unit.tag for unit in units} == {"planning", "search", "summary", "update", "answer"}


def test_credit_needs_no_states(renderer: Renderer) -> None:
    t, _, _ = episode(renderer)
    before = mask().credit([t])
    t.states.clear()
    assert mask().credit([t]) == before


def test_the_order_of_members_and_of_threads_is_nothing(renderer: Renderer) -> None:
    group = [play(renderer, answers) for answers in (["Kel Dax"], ["Vrek", "Kel"])]
    for member, t in enumerate(group):
        t.id = f"{t.id}.{member}"
    for credit in ("per_response", "across_steps", "faithful_eq5"):
        method = mask(credit=credit)
        units = {(unit.rollout, unit.id): unit for unit in method.credit(group)}
        assert {(unit.rollout, unit.id): unit for unit in method.credit(group[::-1])} == units
        turned = [replace(t, threads=t.threads[::-1]) for t in group]
        assert {(unit.rollout, unit.id): unit for unit in method.credit(turned)} == units


def test_shuffled_rewards_stay_with_their_role_and_turn(renderer: Renderer) -> None:
    group = [play(renderer, answers, member=m) for m, answers in enumerate((["Kel Dax", "Vrek"], ["Vrek", "Kel Dax"]))]
    units = mask().credit(group)

    class Swap:
        def sample(self, rollouts: list[str], count: int) -> list[str]:
            return rollouts[::-1]

    swapped = shuffled([Credited(group, units, [])], Swap())  # type: ignore[arg-type]
    half = len(units) // 2
    assert [unit.reward for unit in swapped] == [unit.reward for unit in (*units[half:], *units[:half])]
    assert {unit.baseline for unit in units} == {f"g:{unit.tag}:{unit.baseline.rpartition(':')[2]}" for unit in units}


def test_an_episode_that_failed_outside_the_policy_gives_no_unit(renderer: Renderer) -> None:
    t, _, _ = episode(renderer)
    t.status = "error"
    assert mask().credit([t]) == []


def test_where_the_critic_foresees_every_return_there_is_no_advantage(renderer: Renderer) -> None:
    method = mask()
    t = play(renderer, ["Vrek", "Kel Dax"])
    units, lengths = method.credit([t]), action_lengths(t.threads)
    [objective] = method.schedule()[1].objectives
    foreseen = {unit.actions[0]: np.full(lengths[unit.actions[0]], unit.reward) for unit in units}
    assert all(not np.any(advantage) for advantage, _ in gae(units, objective, lengths, foreseen).values())
    same = [replace(unit, reward=0.5) for unit in units]
    zero = {action: np.zeros(length) for action, length in lengths.items()}
    equal = whiten({action: advantage for action, (advantage, _) in gae(same, objective, lengths, zero).items()})
    assert all(not np.any(advantage) for advantage in equal.values())


def test_an_unscored_reply_gives_no_unit_and_never_zero() -> None:
    action = Action("g.0/planning.t=0#0", (1,), (0.0,), "v", PLAN, "stop")
    t = Trajectory(
        "g.0", TWO_HOPS, "g", 0, "mask", 0, threads=[Thread("g.0/planning.t=0", "planning", "shared", key="t=0", turns=[action])]
    )
    t.rewards = [Reward("f1", action.id, float("nan"))]
    for credit in ("per_response", "across_steps", "faithful_eq5"):
        assert mask(credit=credit).credit([t]) == []
