"""CoDA's rewards, credit and loss against numbers worked out by hand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from coda_episodes import ANSWER, INVALID, MONOLITH, NESTED, PLANNER, SCRIPT, coda, earned, episode, refined, worked
from scripted import EMPLOYER, MENTOR, TWO_HOPS, TableRetriever, passage, said

from rolecast.credit import advantages, group_advantages
from rolecast.judge.lexical import LexicalJudge
from rolecast.learner.batch import action_lengths, make_batch
from rolecast.learner.cut import cut
from rolecast.methods.coda import Coda, CodaConfig, rewards
from rolecast.methods.coda.moves import Move
from rolecast.reduction import item_weights
from rolecast.rollout.render import Renderer
from rolecast.types import (
    TOKEN_MEAN,
    Action,
    Gold,
    ImitationTerm,
    KlTerm,
    Observation,
    PolicyTerm,
    Question,
    Reward,
    Thread,
    Trajectory,
    mean,
    total,
)
from rolecast.world.tokenizer import demo_tokenizer

TASK, SEARCH, DONE = Move("task", "x"), Move("search", "x"), Move("answer", "x")
SEARCHING, REFINED, EMPTY = Move("search", "x", "y"), Move("answer", "x", "y"), Move("answer", "x", "")


@pytest.mark.parametrize(("f1", "value"), [(0.0, -3.0), (0.5, 0.0), (2 / 3, 1.0), (1.0, 3.0)])
def test_equation_5(f1: float, value: float) -> None:
    assert rewards.answer_reward(f1) == pytest.approx(value)


@pytest.mark.parametrize(
    ("replies", "both", "either"),
    [
        ([TASK, DONE], True, True),
        ([TASK, TASK, DONE], True, True),
        ([DONE], False, True),  # an answer without any executor
        ([TASK, TASK], False, True),  # no answer
        ([None, TASK, DONE], False, True),
        ([TASK, None], False, False),
        ([None], False, False),
        ([], False, False),
    ],
)
def test_the_planners_format(replies: Sequence[Move | None], both: bool, either: bool) -> None:
    assert (rewards.planner_format(replies, "both"), rewards.planner_format(replies, "either")) == (both, either)


@pytest.mark.parametrize(
    ("replies", "both", "either"),
    [
        ([SEARCH, REFINED], True, True),
        ([SEARCH, EMPTY], True, True),  # a refine that keeps nothing is one
        ([SEARCH, SEARCHING, DONE], True, True),
        ([SEARCH, DONE], False, True),  # nothing refined
        ([DONE], False, True),  # nothing searched
        ([SEARCH, SEARCHING], False, True),  # never answers
        ([SEARCH, None, REFINED], False, False),
        ([TASK, DONE], True, True),  # a lead that delegated all
        ([TASK, SEARCH, DONE], True, True),
        ([], False, False),
    ],
)
def test_an_executors_format(replies: Sequence[Move | None], both: bool, either: bool) -> None:
    assert (rewards.executor_format(replies, "both"), rewards.executor_format(replies, "either")) == (both, either)


@pytest.mark.parametrize(
    ("right", "of_all", "their_mean"), [([], 0.0, 0.0), ([1.0], 1.0, 1.0), ([1.0, 1.0, 0.0], 0.0, 2 / 3), ([0.0, 0.0], 0.0, 0.0)]
)
def test_the_executors_format(right: Sequence[float], of_all: float, their_mean: float) -> None:
    assert rewards.executors_format(right, "all") == of_all
    assert rewards.executors_format(right, "mean") == pytest.approx(their_mean)


@pytest.mark.parametrize(
    ("notes", "golds", "value"),
    [
        (["The employer of Vrek Stom is Kel Dax."], ["Kel Dax"], 1.0),
        (["nothing", "it is Kel", "Dax, then"], ["Kel Dax"], 1.0),  # spread over two notes (the reason for eq. 7)
        (["Dax", "Kel"], ["Kel Dax"], 0.0),
        (["kel dax"], ["Zen Kol", "Kel Dax"], 1.0),  # one of the golds is enough
        (["Kel Daxon"], ["Kel Dax"], 0.0),
        ([], ["Kel Dax"], 0.0),
        (["", ""], ["The The"], 0.0),  # normalised away, and so in every text: but s_combined is empty
        (["no mentor"], ["no"], 1.0),
    ],
)
def test_equation_8(notes: Sequence[str], golds: Sequence[str], value: float) -> None:
    assert rewards.refined(notes, golds) == value


# Rewards of whole episodes


def scored(
    renderer: Renderer, script: Mapping[str, Sequence[str]], method: Coda | None = None, **options: Any
) -> dict[str, list[float | None]]:
    t, _ = episode(renderer, script, method, **options)
    return {name: earned(t, name) for name in ("team.f1", "format.planner", "format.executor", "refine")}


WRONG = {**SCRIPT, "planner": [*PLANNER[:2], said("answer", "Kel")]}
DIRECT = {"planner": [ANSWER]}
ONE_BAD = {**SCRIPT, "executor": [*worked(MENTOR), said("search", EMPLOYER.query), said("answer", "Kel Dax")]}
BROKEN = {**SCRIPT, "planner": [INVALID, *PLANNER]}
UNREFINED = {**SCRIPT, "executor": [*worked(MENTOR), said("search", EMPLOYER.query), refined("", "answer", "Kel Dax")]}
PREMATURE = {**SCRIPT, "executor": [refined("Kel Dax", "answer", "Vrek Stom"), *worked(MENTOR), *worked(EMPLOYER)]}


@pytest.mark.parametrize(
    ("script", "f1", "planner", "executors", "refine"),
    [
        (SCRIPT, 1.0, 1.0, [1.0, 1.0], 1.0),
        (WRONG, 2 / 3, 1.0, [1.0, 1.0], 1.0),
        (DIRECT, 1.0, 0.0, [], 0.0),
        (ONE_BAD, 1.0, 1.0, [1.0, 0.0], 0.0),
        (BROKEN, 1.0, 0.0, [1.0, 1.0], 1.0),
        (UNREFINED, 1.0, 1.0, [1.0, 1.0], 0.0),
        (PREMATURE, 1.0, 1.0, [0.0, 1.0], 1.0),  # what refines nothing that was read is no move, as `act` read it
    ],
)
def test_what_an_episode_earns(
    renderer: Renderer, script: Mapping[str, Sequence[str]], f1: float, planner: float, executors: list[float], refine: float
) -> None:
    found = scored(renderer, script)
    assert found == {"team.f1": [pytest.approx(f1)], "format.planner": [planner], "format.executor": executors, "refine": [refine]}


# F1, I_P, [I_E of each], refine → the sum, by switch
CASES = [
    # full: 6·1 − 3 + 1 + 1 + .5
    ({}, (1.0, 1.0, [1.0, 1.0], 1.0), 5.5),
    # 6·(2/3) − 3 = 1
    ({}, (2 / 3, 1.0, [1.0, 1.0], 0.0), 3.0),
    ({}, (0.0, 0.0, [], 0.0), -3.0),
    ({}, (1.0, 1.0, [1.0, 0.0, 1.0, 1.0], 1.0), 4.5),
    ({"executors": "mean"}, (1.0, 1.0, [1.0, 0.0, 1.0, 1.0], 1.0), 5.25),
    ({"refine_weight": 0.1}, (1.0, 1.0, [1.0], 1.0), 5.1),
    ({"reward": "format"}, (1.0, 1.0, [1.0], 1.0), 5.0),
    ({"reward": "answer"}, (1.0, 1.0, [1.0], 1.0), 3.0),
    ({"reward": "answer"}, (0.0, 1.0, [1.0], 1.0), -3.0),
    ({"reward": "em"}, (1.0, 1.0, [1.0], 1.0), 1.0),
    ({"reward": "em"}, (2 / 3, 1.0, [1.0], 1.0), 0.0),
]


def finished(f1: float, planner: float, executors: Sequence[float | None], refine: float | None, member: int = 0) -> Trajectory:
    t = Trajectory(f"g.{member}", TWO_HOPS, "g", member, "coda", 0, answer="x")
    roles = ["planner", *["executor"] * len(executors)]
    acts = [Action(f"{t.id}/{n}", (1, 2)[: 1 + n % 2], (0.0, 0.0)[: 1 + n % 2], "v", "", "stop") for n in range(len(roles))]
    see = Observation((5, 6), "")
    t.threads = [
        Thread(f"{t.id}/t{n}", role, "shared", turns=[see, act, see]) for n, (role, act) in enumerate(zip(roles, acts, strict=True))
    ]
    t.rewards = [
        Reward("team.em", t.id, float(f1 == 1)), Reward("team.f1", t.id, f1), Reward("format.planner", t.id, planner),
        *(Reward("format.executor", act.id, value) for act, value in zip(acts[1:], executors, strict=True)), Reward("refine", t.id, refine),
    ]  # fmt: skip
    return t


@pytest.mark.parametrize(("options", "parts", "value"), CASES)
def test_equation_9_and_its_ablations(options: dict[str, Any], parts: tuple[Any, ...], value: float) -> None:
    [unit] = coda(**options).credit([finished(*parts)])
    assert unit.reward == pytest.approx(value)


def test_answering_without_any_executor_earns_no_format_reward(renderer: Renderer) -> None:
    """The short cut that the answer's reward alone leads to (4.3.3)."""
    t, _ = episode(renderer, DIRECT)
    by_executors, _ = episode(renderer, SCRIPT)
    assert [coda().reward(t), coda().reward(by_executors)] == [3.0, 5.5]
    assert coda(reward="answer").reward(t) == coda(reward="answer").reward(by_executors) == 3.0
    assert [coda(reward="format").reward(t), coda(executors="mean").reward(t)] == [3.0, 3.0]
    # By the text's "or" the planner's own part is earned all the same; the executors' is not.
    either, _ = episode(renderer, DIRECT, coda(format_needs="either"))
    assert coda().reward(either) == 4.0


def test_switches_of_the_reward_change_no_episode(renderer: Renderer) -> None:
    plain, _ = episode(renderer, SCRIPT)
    for options in (
        {"reward": "em"}, {"reward": "answer"}, {"reward": "format"}, {"format_needs": "either"}, {"executors": "mean"}, {"refine_weight": 2.0},
        {"tokens": "mean"}, {"dual_clip": 3.0}, {"kl": 0.0},
    ):  # fmt: skip
        t, _ = episode(renderer, SCRIPT, coda(**options))
        assert [thread.turns for thread in t.threads] == [thread.turns for thread in plain.threads]


def test_the_format_switch_changes_what_it_says_and_nothing_else(renderer: Renderer) -> None:
    both, either = (scored(renderer, ONE_BAD, coda(format_needs=needs)) for needs in ("both", "either"))
    assert either == {**both, "format.executor": [1.0, 1.0]}
    both, either = (scored(renderer, DIRECT, coda(format_needs=needs)) for needs in ("both", "either"))
    assert either == {**both, "format.planner": [1.0]}


def test_an_executor_that_failed_of_what_no_role_is_to_blame_for_is_left_out(renderer: Renderer) -> None:
    class OnFire(TableRetriever):
        async def search(self, queries: Any, k: int) -> Any:
            found = await super().search(queries, k)
            if len(self.asked) == 1:
                raise OSError("on fire")
            return found

    script = {**SCRIPT, "executor": [said("search", MENTOR.query), *worked(EMPLOYER)]}
    t, _ = episode(renderer, script, retriever=OnFire({EMPLOYER.query: []}))
    assert earned(t, "format.executor") == [None, 1.0]
    assert coda().reward(t) == 5.5
    [unscored] = [reward for reward in t.rewards if reward.value is None]
    assert (unscored.on, unscored.reason) == (t.threads[1].actions[-1].id, "unscored: its context was full or its search failed")
    alone = finished(1.0, 1.0, [None], 0.0)  # and where it was the only one there is none left
    assert coda().reward(alone) == 4.0


def test_a_reply_to_a_template_that_opens_the_thoughts_is_scored_as_it_was_read() -> None:
    tokenizer = demo_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("'<|assistant|>'", "'<|assistant|><think>\\n'")
    renderer = Renderer(tokenizer)
    assert renderer.opening == "<think>\n"
    begun = {role: [line.removeprefix("<think>") for line in lines] for role, lines in SCRIPT.items()}
    t, _ = episode(renderer, {**begun, "planner": [begun["planner"][0], *PLANNER[1:]]})
    assert all(action.valid for action in t.actions)
    assert (earned(t, "format.planner"), earned(t, "format.executor")) == ([1.0], [1.0, 1.0])


def test_an_executor_that_ran_out_of_turns_is_not_right(renderer: Renderer) -> None:
    searching = [said("search", MENTOR.query), *[refined("", "search", MENTOR.query)] * 5]
    t, _ = episode(renderer, {"planner": [PLANNER[0], ANSWER], "executor": searching})
    assert earned(t, "format.executor") == [0.0]


def test_a_thread_without_a_word_is_scored_as_itself(renderer: Renderer) -> None:
    t, _ = episode(renderer, SCRIPT)
    t.threads[1].turns = t.threads[1].turns[:1]
    found = asyncio.run(coda().score(t, LexicalJudge(), TableRetriever([]).embed))
    assert next((reward.on, reward.value) for reward in found if reward.name == "format.executor") == (t.threads[1].id, None)


def test_refine_texts_of_all_executors_count_together(renderer: Renderer) -> None:
    script = {
        "planner": PLANNER,
        "executor": [
            said("search", MENTOR.query), refined("it begins with Kel", "answer", "a"),
            said("search", EMPLOYER.query), refined("Dax ends it", "answer", "b"),
        ],
    }  # fmt: skip
    assert scored(renderer, script)["refine"] == [1.0]


def test_the_gold_answer_in_documents_results_or_thoughts_is_nothing_refined(renderer: Renderer) -> None:
    script = {**SCRIPT, "executor": [said("search", MENTOR.query, "Kel Dax"), refined("no", "answer", "Kel Dax")] * 2}
    assert scored(renderer, script, documents=[passage(EMPLOYER)])["refine"] == [0.0]


@pytest.mark.parametrize(
    ("script", "value"),
    [
        (MONOLITH["monolith"], 5.5),
        ([ANSWER], 3.0),  # nothing searched: no format reward
        ([said("search", MENTOR.query), ANSWER], 3.0),  # nothing refined
        ([INVALID, *MONOLITH["monolith"]], 3.5),
    ],
)
def test_the_monolith_is_planner_and_executor_in_one(renderer: Renderer, script: Sequence[str], value: float) -> None:
    method = coda(structure="monolithic")
    t, _ = episode(renderer, {"monolith": script}, method)
    assert method.reward(t) == pytest.approx(value)


def test_nested_executors_of_both_levels_count(renderer: Renderer) -> None:
    method = coda(depth=2)
    t, _ = episode(renderer, NESTED, method)
    assert (earned(t, "format.executor"), method.reward(t)) == ([1.0, 1.0, 1.0], 5.5)
    bad, _ = episode(renderer, {**NESTED, "executor": [*worked(MENTOR), said("search", EMPLOYER.query), ANSWER]}, method)
    assert (earned(bad, "format.executor"), method.reward(bad)) == ([1.0, 1.0, 0.0], 4.0)


# Credit


def test_one_unit_per_rollout_over_the_actions_of_all_its_threads(renderer: Renderer) -> None:
    t, _ = episode(renderer, SCRIPT)
    [unit] = coda().credit([t])
    assert unit.actions == tuple(action.id for thread in t.threads for action in thread.actions)
    assert len(unit.actions) == 3 + 2 + 2
    assert (unit.baseline, unit.group, unit.rollout, unit.objective) == (t.group, t.group, t.id, "peco")


def test_equation_2() -> None:
    """Rewards 5.5, 3 and −3: mean 1.8333, deviation √((3.6667² + 1.1667² + 4.8333²)/3) = 3.5668."""
    group = [finished(1.0, 1.0, [1.0, 1.0], 1.0, 0), finished(1.0, 0.0, [], 0.0, 1), finished(0.0, 0.0, [0.0], 0.0, 2)]
    method = coda()
    units = method.credit(group)
    [objective] = method.schedule()[1].objectives
    lengths = action_lengths(thread for t in group for thread in t.threads)
    found = advantages(units, objective, lengths)
    for t, value in zip(group, (1.0280, 0.3271, -1.3551), strict=True):
        for action in t.actions:  # of planner and executors alike
            assert found[action.id].tolist() == pytest.approx([value] * len(action.ids), abs=1e-4)


def test_equal_rewards_and_the_order_of_a_group_change_nothing() -> None:
    same = [finished(1.0, 1.0, [1.0], 1.0, member) for member in range(4)]
    assert set(group_advantages(coda().credit(same), 1e-6).values()) == {0.0}
    group = [finished(f1, 1.0, [1.0], 1.0, member) for member, f1 in enumerate((0.0, 0.5, 1.0, 1.0))]
    plain = group_advantages(coda().credit(group), 1e-6)
    random.Random(1).shuffle(group)
    assert group_advantages(coda().credit(group), 1e-6) == pytest.approx(plain)


def test_units_of_two_questions_are_never_normalised_together() -> None:
    one, two = finished(1.0, 1.0, [1.0], 1.0), finished(0.0, 1.0, [1.0], 1.0)
    two.group = "h"
    assert len({unit.baseline for t in (one, two) for unit in coda().credit([t])}) == 2


@pytest.mark.parametrize("bad", [{"status": "length"}, {"status": "error"}, {"rewards": []}])
def test_unscored_and_failed_rollouts_give_no_unit(bad: dict[str, Any]) -> None:
    assert coda().credit([replace(finished(1.0, 1.0, [1.0], 1.0), **bad)]) == []


def test_an_unscored_part_gives_no_unit_and_never_zero() -> None:
    assert coda().credit([finished(1.0, 1.0, [1.0], None)]) == []


# Loss


def test_objectives_have_the_papers_numbers() -> None:
    [sft, rl] = Coda(CodaConfig()).schedule()
    assert [(stage.name, stage.kind, stage.start, stage.merges) for stage in (sft, rl)] == [
        ("sft", "sft", "", ("shared",)), ("rl", "rl", "sft", ("shared",)),
    ]  # fmt: skip
    [imitated], [peco] = sft.objectives, rl.objectives
    assert (imitated.slot, imitated.imitation, imitated.policy) == ("shared", ImitationTerm(1.0, TOKEN_MEAN), None)
    over = (total("rollout"), mean("group"), mean("batch"))
    assert (peco.policy, peco.kl) == (PolicyTerm("token", (0.2, 0.2), None, over), KlTerm(1e-3, "loss", over))
    assert (peco.name, peco.slot, peco.estimator, peco.lr, peco.critic) == ("peco", "shared", "group", 1e-6, None)


def test_loss_switches() -> None:
    def objective(**options: Any) -> Any:
        return coda(**options).schedule()[1].objectives[0]

    plain = objective()
    assert objective(tokens="mean") == replace(plain, policy=replace(plain.policy, over=TOKEN_MEAN), kl=replace(plain.kl, over=TOKEN_MEAN))
    assert objective(dual_clip=3.0) == replace(plain, policy=replace(plain.policy, dual_clip=3.0))
    assert objective(kl=0.0) == replace(plain, kl=None)
    assert objective(clip=0.1) == replace(plain, policy=replace(plain.policy, clip=(0.1, 0.1)))


def test_token_sum_and_token_mean() -> None:
    """Two rollouts of a question, of 1 + 2 and 1 tokens. The sum weighs every token 1/2; the mean 1/4."""
    group = [finished(1.0, 1.0, [1.0], 1.0, 0), finished(0.0, 0.0, [], 0.0, 1)]
    lengths = action_lengths(thread for t in group for thread in t.threads)
    assert sum(lengths.values()) == 4
    for tokens, weight in (("sum", 0.5), ("mean", 0.25)):
        method = coda(tokens=tokens)
        [objective] = method.schedule()[1].objectives
        assert objective.policy is not None
        assert item_weights(method.credit(group), lengths, objective.policy.over) == {"g.0": weight, "g.1": weight}


def test_observations_carry_no_loss_and_no_kl() -> None:
    group = [finished(1.0, 1.0, [1.0, 1.0], 1.0, 0), finished(0.0, 0.0, [1.0], 0.0, 1)]
    method = coda()
    [objective] = method.schedule()[1].objectives
    threads = [thread for t in group for thread in t.threads]
    units = method.credit(group)
    batch = cut(objective, make_batch("shared", threads, units), units, [], action_lengths(threads), 10**6, [0]).batch
    action = np.concatenate([np.full(len(turn.ids), isinstance(turn, Action)) for thread in threads for turn in thread.turns])
    assert (action == (batch.policy_weight > 0)).all()
    assert (action == (batch.kl_weight > 0)).all()
    assert 0 < action.sum() < len(action)


# Figures


def test_diagnostics(renderer: Renderer) -> None:
    first, _ = episode(renderer, SCRIPT)
    second, _ = episode(renderer, {"planner": [PLANNER[0], ANSWER], "executor": [INVALID, *worked(MENTOR)]})
    third, _ = episode(renderer, DIRECT)
    found = coda().diagnostics([first, second, third])
    assert (found["executors"], found["executors/right"], found["executors/failed"]) == (1.0, pytest.approx(2 / 3), 0.0)
    peaks = {role: [max(len(thread.ids) for thread in t.threads_of(role)) for t in (first, second)] for role in ("planner", "executor")}
    assert found["context/planner"] == pytest.approx((sum(peaks["planner"]) + len(third.threads[0].ids)) / 3)
    assert found["context/planner/max"] == max(peaks["planner"])
    assert (found["context/executor"], found["context/executor/max"]) == (sum(peaks["executor"]) / 2, max(peaks["executor"]))


def test_diagnostics_of_nothing_and_of_the_ablation(renderer: Renderer) -> None:
    assert coda().diagnostics([]) == {"executors": 0.0}
    method = coda(structure="monolithic")
    t, _ = episode(renderer, MONOLITH, method)
    assert method.diagnostics([t]) == {f"context/monolith{key}": len(t.threads[0].ids) for key in ("", "/max")}


def test_diagnostics_need_no_states(renderer: Renderer) -> None:
    t, _ = episode(renderer, NESTED, coda(depth=2))
    whole = coda(depth=2).diagnostics([t])
    assert (whole["executors"], whole["context/lead"] > 0) == (3.0, True)
    assert coda(depth=2).diagnostics([replace(t, states={})]) == whole
    assert coda(depth=2).credit([replace(t, states={})]) == coda(depth=2).credit([t])


@pytest.mark.parametrize(("share", "warned"), [(None, False), (0.1, False), (0.12, True)])
def test_a_retriever_that_fails_executors_is_told(share: float | None, warned: bool) -> None:
    rows = [{"method/executors/failed": 1.0}, {} if share is None else {"method/executors/failed": share}]
    alarms = coda().alarms(rows)
    assert bool(alarms) is warned
    if warned:
        assert alarms["executors_failed"].startswith("12% of the executors failed")
    assert coda().alarms([]) == {}


def test_failed_executors_are_counted(renderer: Renderer) -> None:
    t = finished(1.0, 1.0, [None, 1.0, 1.0, 1.0], 1.0)
    assert coda().diagnostics([t])["executors/failed"] == pytest.approx(0.25)


def test_a_question_without_gold_answers_earns_nothing_for_refining(renderer: Renderer) -> None:
    assert scored(renderer, SCRIPT, question=Question("q", "Q?", Gold(())))["refine"] == [0.0]
