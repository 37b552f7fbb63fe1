"""Which questions are held to a rubric or a reference, what the judge is asked of them, and what leads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolecast.evaluation.metrics import summarize
from rolecast.evaluation.reports import reference_of, report_rewards, with_reports
from rolecast.evaluation.table import datasets_table
from rolecast.evaluation.tasks import QA
from rolecast.judge.cache import Cache, CachedJudge
from rolecast.judge.openai import OpenAIJudge
from rolecast.ports import JudgeInfo, Verdict
from rolecast.rewards.reports import Pair, both_orders, disagree
from rolecast.rollout.collect import CountedJudge
from rolecast.rollout.waits import Waits
from rolecast.stages.evaluate import prediction
from rolecast.store.local import LocalStore
from rolecast.types import Gold, Question, RubricItem, Trajectory
from tests.endpoint import answering, completion, marked

PARTS = (RubricItem("says why", 0.75, "insight"), RubricItem("reads well", 0.25, "readability"))
LONG = Question("r", "Why?", Gold(("A reference report.",), rubric=PARTS))
ALONE = Question("a", "Why?", Gold((), rubric=(RubricItem("says why", 3.0), RubricItem("is rude", -1.0))))
SHORT = Question("s", "Who?", Gold(("Kel Dax",)))
REPORT, REFERENCE = "A report.", "A reference report."
# By criterion: how far the report satisfies it, and the levels of the first and the second text, with the report first and with it second.
LEVELS: dict[str, tuple[float, tuple[float, float], tuple[float, float]]] = {
    "says why": (1.0, (1.0, 0.5), (0.5, 0.75)),  # better in both orders: x = .875, y = .5
    "reads well": (0.5, (0.75, 0.5), (1.0, 0.25)),  # whatever stands first is better: all four make a tie at .625
    "is rude": (1.0, (0.0, 0.0), (0.0, 0.0)),
}
# x is .75 · .875 + .25 · .625 = .8125, y is .75 · .5 + .25 · .625 = .53125.
RACE = 0.8125 / (0.8125 + 0.53125)
# With the report first .75 · 1 + .25 · .75 = .9375 to .75 · .5 + .25 · .5 = .5; second .75 · .75 + .25 · .25 = .625 to .75 · .5 + .25 · 1 = .625.
ORDERS = {"race.first": 0.9375 / 1.4375, "race.second": 0.5, "race.disagree": 0.5}


class Levels:
    """`mute`: the criterion, and the order if one is named, that it does not score."""

    def __init__(self, mute: str = "", order: str = "") -> None:
        self.mute, self.order = mute, order
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def info(self) -> JudgeInfo:
        return JudgeInfo("levels")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        self.asked.append((kind, inputs))
        level, forth, back = LEVELS[inputs["item"]]
        if inputs["item"] == self.mute and (not self.order or inputs.get("first") == self.order):
            return Verdict(None, "away")
        if kind == "rubric":
            return Verdict(level)
        pair = forth if inputs["first"] == REPORT else back
        return Verdict(pair[0] / sum(pair), levels=pair)


def episode(question: Question, answer: str | None = "A report.", judge: Levels | None = None) -> Trajectory:
    t = Trajectory(question.id, question, question.id, 0, "direct", 0, answer=answer)
    t.rewards = asyncio.run(report_rewards(t, judge or Levels()))
    return t


def rewards(t: Trajectory) -> dict[str, float | None]:
    return {reward.name: reward.value for reward in t.rewards}


def test_a_report_with_a_reference_has_both_scores() -> None:
    judge = Levels()
    t = episode(LONG, judge=judge)
    # .75 · 1 + .25 · .5
    parts = {"race/insight": 0.875 / 1.375, "race/readability": 0.5}
    assert rewards(t) == pytest.approx({"rubric": 0.875, "race": RACE, **parts, **ORDERS})
    assert [(kind, inputs["item"]) for kind, inputs in judge.asked if kind == "rubric"] == [
        ("rubric", "says why"),
        ("rubric", "reads well"),
    ]
    assert sorted((inputs["item"], inputs["first"], inputs["second"]) for kind, inputs in judge.asked if kind == "race") == [
        ("reads well", REFERENCE, REPORT), ("reads well", REPORT, REFERENCE), ("says why", REFERENCE, REPORT), ("says why", REPORT, REFERENCE),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ((1.0, 0.5), (0.5, 0.25), (0.75, 0.375)),  # the text in both orders
        ((0.25, 0.5), (0.5, 1.0), (0.375, 0.75)),  # the reference in both
        ((1.0, 0.75), (0.25, 0.75), (0.6875, 0.6875)),  # another one in each order: (1 + .75 + .25 + .75) / 4
        ((0.75, 0.75), (1.0, 0.5), (0.875, 0.625)),  # alike in one order
        ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
    ],
)
def test_two_orders_are_one_verdict(one: Pair, other: Pair, both: Pair) -> None:
    assert both_orders(one, other) == both_orders(other, one) == both
    assert disagree(one, other) is (one == (1.0, 0.75))


def test_a_judge_that_prefers_a_place_alone_makes_a_tie() -> None:
    """Whatever stands first has all: one order alone would say 1."""
    said = {item: (level, (1.0, 0.0), (1.0, 0.0)) for item, (level, _, _) in LEVELS.items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(globals(), "LEVELS", said)
        found = rewards(episode(LONG))
    assert [found[name] for name in ("race", "race.first", "race.second", "race.disagree")] == [0.5, 1.0, 0.0, 1.0]


def priced(body: dict[str, Any]) -> dict[str, Any]:
    text = "Score: 1/0.5" if "First text" in body["messages"][0]["content"] else "Score: 1"
    return {**completion(marked(text, body)), "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}


def test_both_orders_count_against_the_judges_budget_and_are_cached_each(tmp_path: Path) -> None:
    """Two criteria: two verdicts by the rubric and four by the reference, 7 tokens each; asked again they cost nothing."""
    with answering() as (url, endpoint):
        endpoint.replies = [priced]
        judge = CachedJudge(OpenAIJudge(url, "m"), Cache(LocalStore(tmp_path), "m"))
        counts = []
        for _ in range(2):
            t = Trajectory("r", LONG, "r", 0, "direct", 0, answer=REPORT)
            t.rewards = asyncio.run(report_rewards(t, CountedJudge(judge, t, Waits())))
            counts.append((t.judge_calls, t.judge_tokens, len(endpoint.bodies)))
    assert counts[0][0] == counts[1][0] == 6
    assert counts[0][1:] == (42, 6)
    assert counts[1][1:] == (0, 6)


def test_without_dimensions_there_is_a_rubric_alone() -> None:
    assert rewards(episode(ALONE)) == pytest.approx({"rubric": 2 / 3})  # (3 − 1) / 3
    assert reference_of(replace(ALONE, gold=replace(ALONE.gold, answers=("Kel Dax",)))) is None


def test_a_short_answer_is_asked_nothing() -> None:
    judge = Levels()
    assert (rewards(episode(SHORT, judge=judge)), judge.asked) == ({}, [])


def test_no_answer_scores_0_and_one_criterion_that_is_unscored_leaves_its_scores_unscored() -> None:
    assert rewards(episode(LONG, None)) == {"rubric": 0.0, "race": 0.0}
    t = episode(LONG, judge=Levels("reads well"))
    assert rewards(t) == {"rubric": None, "race": None}
    assert t.rewards[0].reason == "'reads well' is unscored: away"


@pytest.mark.parametrize("order", [REPORT, REFERENCE])
def test_one_order_that_is_unscored_leaves_the_comparison_unscored(order: str) -> None:
    t = episode(LONG, judge=Levels("reads well", order))
    assert rewards(t) == {"rubric": 0.875, "race": None}
    assert t.rewards[1].reason == "'reads well' is unscored: away"


@pytest.mark.parametrize("order", [REPORT, REFERENCE])
def test_a_judge_that_tells_no_levels_is_said(order: str) -> None:
    class Old(Levels):
        async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
            verdict = await super().judge(kind, inputs)
            return replace(verdict, levels=None) if inputs.get("first") == order else verdict

    t = episode(LONG, judge=Old())
    assert (rewards(t)["race"], t.rewards[1].reason) == (None, "the judge tells no levels of the two texts; start one of this version")


def test_both_orders_stand_with_a_prediction() -> None:
    task = with_reports(QA, [LONG, ALONE])
    t = episode(LONG)
    scores = prediction(t, task, task.scores(t))["scores"]
    assert {name: scores[name] for name in ("race", *ORDERS)} == pytest.approx({"race": RACE, **ORDERS})


def test_of_reports_alone_the_comparison_leads() -> None:
    task = with_reports(QA, [LONG, ALONE])
    found = summarize([episode(LONG), episode(ALONE)], 0, 200, task)
    assert (found["headline"], found["n"], found["unscored"]) == ("race", 1, 1)
    assert found["race"] == pytest.approx(RACE)
    assert {name: found[name] for name in ORDERS} == pytest.approx(ORDERS)
    assert found["rubric"] == pytest.approx((0.875 + 2 / 3) / 2)
    assert found["others"]["rubric"]["n"] == 2
    assert found["race/insight"] == pytest.approx(0.875 / 1.375)
    assert "em" not in found
    assert datasets_table(found).splitlines()[0].split()[:3] == ["data", "set", "n"]
    assert "60.5" in datasets_table(found)


def test_beside_short_answers_they_stand_beside() -> None:
    task = with_reports(QA, [SHORT, ALONE])
    found = summarize([episode(SHORT, "Kel Dax"), episode(ALONE)], 0, 200, task)
    assert (found["headline"], found["em"], found["n"]) == ("em", 1.0, 1)
    assert found["rubric"] == pytest.approx(2 / 3)
    assert with_reports(QA, [SHORT]) is QA
