"""DECOR against the paper: Algorithm 1 step by step, faults, rewards (eq. 2-3) and credit (eq. 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from decor_episodes import DOCUMENTS, ROLES, SCRIPT, STOP, decor, episode, states_of
from pydantic import ValidationError
from scripted import (
    EMPLOYER,
    MAYOR,
    MENTOR,
    RIVAL,
    TWO_HOPS,
    ScriptedJudge,
    prompt_of,
    said,
)

from rolecast.credit import group_advantages
from rolecast.folds import TOKEN_MEAN, mean, total
from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.methods.decor.state import Entry
from rolecast.rollout.render import Renderer
from rolecast.types import Action, ImitationTerm, PolicyTerm, Reward, Thread, Trajectory

# Algorithm 1


def test_roles_speak_in_the_order_of_algorithm_1(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, SCRIPT)
    assert engine.speakers == ["planner", "filter", "planner", "filter", "planner", "answerer"]
    assert engine.unsaid == []
    assert retriever.asked == [(MENTOR.query, 5), (EMPLOYER.query, 5)]
    assert (t.answer, t.status, t.searches) == ("Kel Dax", "ok", 2)


def test_each_observation_is_that_of_algorithm_1(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, SCRIPT)
    notes = [f"\n {fact.query}: {fact.sentence}" for fact in (MENTOR, EMPLOYER)]
    expected = [
        f"planner question: {TWO_HOPS.text}",
        f"filter query: {MENTOR.query}\n {MENTOR.sentence}\n {RIVAL.sentence}",
        f"planner question: {TWO_HOPS.text}{notes[0]}",
        f"filter query: {EMPLOYER.query}\n {EMPLOYER.sentence}\n {MAYOR.sentence}",
        f"planner question: {TWO_HOPS.text}{notes[0]}{notes[1]}",
        f"answerer question: {TWO_HOPS.text}{notes[0]}{notes[1]}",
    ]
    assert [prompt_of(thread) for thread in t.threads] == [f"<|user|>{text}<|assistant|>" for text in expected]


def test_states_are_those_that_the_actions_were_taken_in(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, SCRIPT)
    planner, filter_, answerer = (states_of(t, role) for role in ROLES)
    assert [state.queries for state in planner] == [[], [MENTOR.query], [MENTOR.query, EMPLOYER.query]]
    assert [[entry.evidence for entry in state.memory] for state in planner] == [
        [],
        [MENTOR.sentence],
        [MENTOR.sentence, EMPLOYER.sentence],
    ]
    assert [state.sub_query for state in filter_] == [MENTOR.query, EMPLOYER.query]
    assert [len(state.memory) for state in (*filter_, *answerer)] == [0, 1, 2]
    assert [[p.text for p in state.documents] for state in filter_] == [[p.text for p in found] for found in DOCUMENTS.values()]


@pytest.mark.parametrize("t_max", [1, 2, 4])
def test_after_t_max_searches_the_answerer_speaks_without_another_turn_of_the_planner(renderer: Renderer, t_max: int) -> None:
    script = {
        "planner": [said("search", f"query {i}") for i in range(t_max)],
        "filter": [said("filter", "")] * t_max,
        "answerer": [said("answer", "unknown")],
    }
    t, engine, _ = episode(renderer, script, method=decor(max_turns=t_max))
    assert engine.speakers == ["planner", "filter"] * t_max + ["answerer"]
    assert t.status == "ok"


def test_the_number_of_passages_is_an_option(renderer: Renderer) -> None:
    t, _, retriever = episode(renderer, SCRIPT, method=decor(k=1))
    assert [k for _, k in retriever.asked] == [1, 1]
    assert [len(state.documents) for state in states_of(t, "filter")] == [1, 1]


def test_stop_with_nothing_found_goes_on_to_the_answerer_and_costs_the_planner(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, {"planner": [STOP], "answerer": [said("answer", "unknown")]}, LexicalJudge())
    assert engine.speakers == ["planner", "answerer"]
    assert retriever.asked == []
    assert t.status == "ok"
    [verdict] = [reward for reward in t.rewards if reward.source == "judge.planner"]
    assert (verdict.value, verdict.on) == (-1.0, t.threads[0].actions[0].id)


def test_an_empty_filter_is_remembered_as_having_found_nothing(renderer: Renderer) -> None:
    script = {**SCRIPT, "filter": [said("filter", ""), said("filter", EMPLOYER.sentence)]}
    t, _, _ = episode(renderer, script)
    assert states_of(t, "answerer")[0].memory == [Entry(MENTOR.query, ""), Entry(EMPLOYER.query, EMPLOYER.sentence)]


def test_the_answerer_never_reads_what_the_filter_dropped(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, SCRIPT)
    [thread] = t.threads_of("answerer")
    assert RIVAL.object not in prompt_of(thread)
    assert MAYOR.object not in prompt_of(thread)


# Format faults


MALFORMED = ["no tags at all", "<think> a</think><search> b", "<search> b</search>", "<think> a</think><search></search>"]


@pytest.mark.parametrize(
    ("script", "acted"),
    [
        ({"planner": ["nonsense"]}, {"planner": 1}),
        ({"planner": SCRIPT["planner"][:1], "filter": ["<filter> x</filter>"]}, {"planner": 1, "filter": 1}),
        ({"planner": [SCRIPT["planner"][0], "<think> b"], "filter": SCRIPT["filter"][:1]}, {"planner": 2, "filter": 1}),
        ({"planner": [STOP], "answerer": ["Kel Dax"]}, {"planner": 1, "answerer": 1}),
        ({**SCRIPT, "answerer": [said("answer", "")]}, {"planner": 3, "filter": 2, "answerer": 1}),
    ],
)
def test_a_fault_ends_the_episode_and_costs_every_role_that_acted(
    renderer: Renderer, script: Mapping[str, Sequence[str]], acted: dict[str, int]
) -> None:
    t, engine, _ = episode(renderer, script, LexicalJudge())
    assert engine.unsaid == []
    assert (t.status, t.answer) == ("format", None)
    assert [action.valid for action in t.actions] == [True] * (sum(acted.values()) - 1) + [False]
    units = decor().credit([t])
    assert {unit.tag: (unit.reward, len(unit.actions)) for unit in units} == {role: (-1.0, n) for role, n in acted.items()}


@pytest.mark.parametrize("reply", MALFORMED)
def test_malformed_replies_of_the_planner(renderer: Renderer, reply: str) -> None:
    t, _, _ = episode(renderer, {"planner": [reply]})
    assert t.status == "format"


def test_a_reply_that_ran_out_of_tokens_is_a_fault(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, {"planner": ["<think> next fact next fact"]})
    assert t.status == "format"
    assert t.actions[0].finish == "length"


def test_a_prompt_beyond_the_context_ends_the_episode_as_length(renderer: Renderer) -> None:
    t, engine, _ = episode(renderer, SCRIPT, max_context=45)
    assert t.status == "length"
    assert engine.speakers == ["planner"]
    assert decor().credit([t]) == []  # nobody is to blame


def test_what_a_token_carried_past_the_stop_string_is_no_fault(renderer: Renderer) -> None:
    script = {role: [f"{line}." for line in lines] for role, lines in SCRIPT.items()}
    t, _, _ = episode(renderer, script)
    assert (t.status, t.answer) == ("ok", "Kel Dax")
    assert all(action.text.endswith(".") for action in t.actions)


def test_the_judge_reads_the_same_content_as_the_rollout(renderer: Renderer) -> None:
    script = {role: [f"{line}." for line in lines] for role, lines in SCRIPT.items()}
    t, _, _ = episode(renderer, script, LexicalJudge())
    assert [reward.value for reward in t.rewards if reward.name == "role"] == [1.0] * 6


# Rewards


def rewarded(
    planner: Sequence[float | None], answerer: float | None, f1: float = 0.8, em: float = 0.0, judged: float | None = 0.5
) -> Trajectory:
    """Three turns of the planner, two of the filter (both +1) and an answer, with these scores."""
    t = Trajectory("t", TWO_HOPS, "g", 0, "decor", 0, status="ok", answer="x")
    scores: list[Reward] = []
    for role, values in (("planner", planner), ("filter", (1.0, 1.0)), ("answerer", (answerer,))):
        for number, value in enumerate(values):
            action = Action(f"{role}{number}", (1,), (0.0,), "v", "", "stop")
            t.threads.append(Thread(action.id, role, "shared", turns=[action]))
            scores.append(Reward("role", action.id, value))
    t.rewards = [Reward("team.f1", "t", f1), Reward("team.em", "t", em), Reward("team.judge", "t", judged), *scores]
    return t


def earned(method: Decor, t: Trajectory) -> dict[str, float]:
    return {unit.tag: unit.reward for unit in method.credit([t])}


MIXED = rewarded((1.0, -1.0, 1.0), -1.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # R_team = .5·.8 + .5·.5 = .65; R = .6·.65 + .4·mean of the role's scores
        ({}, {"planner": 0.39 + 0.4 / 3, "filter": 0.79, "answerer": -0.01}),
        # R_team = .25·.8 + .75·.5 = .575; R = .3·.575 + .7·mean
        ({"lam": 0.25, "alpha": 0.3}, {"planner": 0.1725 + 0.7 / 3, "filter": 0.8725, "answerer": -0.5275}),
        ({"alpha": 1.0}, {"planner": 0.65, "filter": 0.65, "answerer": 0.65}),
        ({"alpha": 0.0}, {"planner": 1 / 3, "filter": 1.0, "answerer": -1.0}),
        ({"team": "f1"}, {"planner": 0.48 + 0.4 / 3, "filter": 0.88, "answerer": 0.08}),
        ({"team": "em"}, {"planner": 0.4 / 3, "filter": 0.4, "answerer": -0.4}),
        ({"lam": 1.0}, {"planner": 0.48 + 0.4 / 3, "filter": 0.88, "answerer": 0.08}),
        ({"lam": 0.0}, {"planner": 0.3 + 0.4 / 3, "filter": 0.7, "answerer": -0.1}),
    ],
)
def test_reward_of_each_role(options: dict[str, Any], expected: dict[str, float]) -> None:
    assert earned(decor(**options), MIXED) == pytest.approx(expected)


def test_an_answerer_without_a_verdict_earns_the_team_reward_alone() -> None:
    found = earned(decor(), rewarded((1.0, 1.0, 1.0), None))
    assert found == pytest.approx({"planner": 0.79, "filter": 0.79, "answerer": 0.65})


def test_the_mean_is_over_the_turns_that_were_scored() -> None:
    assert earned(decor(), rewarded((1.0, None, -1.0), 1.0))["planner"] == pytest.approx(0.39)
    assert earned(decor(), rewarded((1.0, None, None), 1.0))["planner"] == pytest.approx(0.79)


def test_a_planner_or_filter_that_no_judge_scored_gives_no_unit() -> None:
    assert set(earned(decor(), rewarded((None, None, None), 1.0))) == {"filter", "answerer"}
    t = rewarded((1.0, 1.0, 1.0), 1.0)
    t.rewards = [replace(reward, value=None) if reward.on.startswith("filter") else reward for reward in t.rewards]
    assert set(earned(decor(), t)) == {"planner", "answerer"}


@pytest.mark.parametrize(
    ("planner", "answerer", "judged", "expected"),
    [
        ((1.0, -1.0, 1.0), -1.0, None, {"planner": 1 / 3, "filter": 1.0, "answerer": -1.0}),
        ((1.0, 1.0, 1.0), None, 0.5, {"planner": 1.0, "filter": 1.0}),
        ((None, None, None), None, None, {"filter": 1.0}),
    ],
)
def test_at_alpha_0_the_team_reward_does_not_matter(
    planner: Sequence[float | None], answerer: float | None, judged: float | None, expected: dict[str, float]
) -> None:
    assert earned(decor(alpha=0.0), rewarded(planner, answerer, judged=judged)) == pytest.approx(expected)


def test_at_alpha_1_the_role_judges_do_not_matter() -> None:
    assert earned(decor(alpha=1.0), rewarded((None, None, None), None)) == pytest.approx(dict.fromkeys(ROLES, 0.65))


def test_an_unscored_answer_gives_no_unit_and_never_zero() -> None:
    assert earned(decor(), rewarded((1.0, 1.0, 1.0), 1.0, judged=None)) == {}


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_is_unscored(score: float) -> None:
    assert earned(decor(), rewarded((1.0, 1.0, 1.0), 1.0, judged=score)) == {}
    assert set(earned(decor(), rewarded((score, score, score), score))) == {"filter", "answerer"}
    assert earned(decor(), rewarded((1.0, score, -1.0), 1.0))["planner"] == pytest.approx(0.39)


@pytest.mark.parametrize("options", [{"lam": 1.0}, {"team": "f1"}, {"team": "em"}])
def test_where_the_judge_is_not_asked_an_unscored_answer_does_not_matter(options: dict[str, Any]) -> None:
    assert set(earned(decor(**options), rewarded((1.0, 1.0, 1.0), 1.0, judged=None))) == set(ROLES)


def test_an_episode_that_failed_outside_the_policy_gives_no_unit() -> None:
    t = rewarded((1.0, 1.0, 1.0), 1.0)
    t.status = "error"
    assert earned(decor(), t) == {}


def test_score_asks_the_judge_about_every_turn_and_the_answer(renderer: Renderer) -> None:
    judge = ScriptedJudge(answer=[0.5], decor_planner=[1, -1, 1], decor_filter=[1, 1], decor_answerer=[None])
    t, _, _ = episode(renderer, {**SCRIPT, "answerer": [said("answer", "Kel")]}, judge)
    named = {(reward.name, reward.on): reward.value for reward in t.rewards}
    assert [named[f"team.{name}", t.id] for name in ("f1", "em", "judge")] == [pytest.approx(2 / 3), 0.0, 0.5]
    assert [named["role", action.id] for thread in t.threads_of("planner") for action in thread.actions] == [1, -1, 1]
    assert [named["role", action.id] for action in t.threads_of("answerer")[0].actions] == [None]
    assert len(t.rewards) == 3 + 6


def test_the_judge_is_given_content_and_the_state_of_its_turn(renderer: Renderer) -> None:
    judge = ScriptedJudge(answer=[1.0], decor_planner=[1, 1, 1], decor_filter=[1, 1], decor_answerer=[1])
    episode(renderer, SCRIPT, judge)
    assert [inputs["content"] for inputs in judge.seen["decor.planner"]] == [MENTOR.query, EMPLOYER.query, "None"]
    assert [inputs["queries"] for inputs in judge.seen["decor.planner"]] == [[], [MENTOR.query], [MENTOR.query, EMPLOYER.query]]
    assert [inputs["memory"] for inputs in judge.seen["decor.planner"]] == ["", MENTOR.sentence, f"{MENTOR.sentence}\n{EMPLOYER.sentence}"]
    assert [inputs["documents"] for inputs in judge.seen["decor.filter"]] == [[p.text for p in found] for found in DOCUMENTS.values()]
    assert [inputs["sub_query"] for inputs in judge.seen["decor.filter"]] == [MENTOR.query, EMPLOYER.query]
    assert judge.seen["decor.answerer"][0]["memory"] == f"{MENTOR.sentence}\n{EMPLOYER.sentence}"
    assert judge.seen["answer"][0]["prediction"] == "Kel Dax"
    assert all(inputs["gold"] is TWO_HOPS.gold for kind in judge.seen.values() for inputs in kind)


@pytest.mark.parametrize(
    ("answer", "kept", "verdict"),
    [
        ("Kel Dax", EMPLOYER.sentence, 1.0),
        ("Kel Dax", "", 1.0),
        ("Zen Kol", EMPLOYER.sentence, -1.0),  # wrong with the evidence in memory
        ("Zen Kol", "", None),  # wrong without it
    ],
)
def test_the_answerer_is_blamed_only_where_the_memory_held_the_evidence(
    renderer: Renderer, answer: str, kept: str, verdict: float | None
) -> None:
    script = {**SCRIPT, "filter": [SCRIPT["filter"][0], said("filter", kept)], "answerer": [said("answer", answer)]}
    t, _, _ = episode(renderer, script, LexicalJudge())
    assert [reward.value for reward in t.rewards if reward.source == "judge.answerer"] == [verdict]


# Credit


def test_a_unit_holds_all_actions_of_one_role_of_one_rollout(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, SCRIPT, LexicalJudge())
    units = decor().credit([t])
    assert [unit.tag for unit in units] == list(ROLES)
    for unit in units:
        assert unit.actions == tuple(action.id for thread in t.threads_of(unit.tag) for action in thread.actions)
        assert (unit.group, unit.rollout, unit.objective) == (t.group, t.id, "decor")


def test_units_of_two_questions_or_roles_are_never_normalised_together(renderer: Renderer) -> None:
    trajectories = [episode(renderer, SCRIPT, LexicalJudge(), group=group, member=m)[0] for group in ("g", "h") for m in (0, 1)]
    units = [unit for i in (0, 2) for unit in decor().credit(trajectories[i : i + 2])]
    assert len({unit.id for unit in units}) == 12
    for one in units:
        same = [other for other in units if other.baseline == one.baseline]
        assert {(other.group, other.tag) for other in same} == {(one.group, one.tag)}
        assert len(same) == 2


def test_equation_6_leaves_roles_that_did_not_act_out_of_the_statistics(renderer: Renderer) -> None:
    good, _, _ = episode(renderer, SCRIPT, LexicalJudge(), member=0)
    wrong, _, _ = episode(renderer, {**SCRIPT, "answerer": [said("answer", "Zen Kol")]}, LexicalJudge(), member=1)
    faulty, _, _ = episode(renderer, {"planner": ["nonsense"]}, LexicalJudge(), member=2)
    units = decor().credit([good, wrong, faulty])
    assert [(unit.rollout, unit.tag) for unit in units] == [
        *((t.id, role) for t in (good, wrong) for role in ROLES),
        (faulty.id, "planner"),
    ]
    rewards = {(unit.rollout, unit.tag): unit.reward for unit in units}
    assert [rewards[t.id, "planner"] for t in (good, wrong, faulty)] == pytest.approx([1.0, 0.4, -1.0])
    advantage = group_advantages(units, 0.0)
    assert [advantage[f"{t.id}:filter"] for t in (good, wrong)] == pytest.approx([1, -1])
    # 1, .4 and −1: mean .1333, deviation √(.7511 + .0711 + 1.2844)/√3 = .8380
    assert [advantage[f"{t.id}:planner"] for t in (good, wrong, faulty)] == pytest.approx([1.0342, 0.3182, -1.3524], abs=1e-4)


def test_one_objective_with_one_ratio_per_unit_and_the_papers_numbers() -> None:
    [sft, rl] = Decor(DecorConfig()).schedule()
    assert [(stage.name, stage.kind, stage.start, stage.merges) for stage in (sft, rl)] == [
        ("sft", "sft", "", ("shared",)), ("rl", "rl", "sft", ("shared",)),
    ]  # fmt: skip
    assert [(o.slot, o.imitation, o.policy) for o in sft.objectives] == [("shared", ImitationTerm(1.0, TOKEN_MEAN), None)]
    [objective] = rl.objectives
    policy = PolicyTerm("unit", (3e-4, 4e-4), over=(total("rollout"), mean("group"), mean("batch")))
    assert (objective.policy, objective.estimator, objective.slot) == (policy, "group", "shared")
    assert (objective.lr, objective.kl, objective.critic, objective.imitation) == (2e-6, None, None, None)
    config = DecorConfig()
    assert (config.max_turns, config.k, config.memory_tokens, config.lam, config.alpha) == (4, 5, 4096, 0.5, 0.6)


@pytest.mark.parametrize("bad", [{"alpha": 1.1}, {"lam": -0.1}, {"team": "bleu"}, {"k": 0}, {"max_turns": 0}, {"unknown": 1}])
def test_config_is_closed_and_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DecorConfig(**bad)


def test_what_the_stages_ask_of_a_method_are_its_options() -> None:
    method = Decor(DecorConfig(k=7, dynamic_sampling="trajectory"))
    assert (method.k, method.dynamic_sampling) == (7, "trajectory")
