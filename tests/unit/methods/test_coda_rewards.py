"""CoDA's rewards against numbers worked out by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from coda_episodes import ANSWER, DIRECT, INVALID, MONOLITH, NESTED, PLANNER, SCRIPT, coda, earned, episode, finished, refined, worked
from scripted import EMPLOYER, MENTOR, TableRetriever, passage, said

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.coda import Coda, rewards
from rolecast.methods.coda.moves import Move
from rolecast.rollout.render import Renderer
from rolecast.types import (
    Gold,
    Question,
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


def test_a_question_without_gold_answers_earns_nothing_for_refining(renderer: Renderer) -> None:
    assert scored(renderer, SCRIPT, question=Question("q", "Q?", Gold(())))["refine"] == [0.0]
