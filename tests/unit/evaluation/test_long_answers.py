"""Which questions are held to a rubric or a reference, what the judge is asked of them, and what leads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from rolecast.evaluation.metrics import summarize
from rolecast.evaluation.reports import reference_of, report_rewards, with_reports
from rolecast.evaluation.table import datasets_table
from rolecast.evaluation.tasks import QA
from rolecast.ports import JudgeInfo, Verdict
from rolecast.types import Gold, Question, RubricItem, Trajectory

PARTS = (RubricItem("says why", 0.75, "insight"), RubricItem("reads well", 0.25, "readability"))
LONG = Question("r", "Why?", Gold(("A reference report.",), rubric=PARTS))
ALONE = Question("a", "Why?", Gold((), rubric=(RubricItem("says why", 3.0), RubricItem("is rude", -1.0))))
SHORT = Question("s", "Who?", Gold(("Kel Dax",)))
# By criterion: how far the report satisfies it, and the levels of report and reference side by side.
LEVELS = {"says why": (1.0, (1.0, 0.5)), "reads well": (0.5, (0.5, 1.0)), "is rude": (1.0, (0.0, 0.0))}


class Levels:
    def __init__(self, mute: str = "") -> None:
        self.mute = mute
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def info(self) -> JudgeInfo:
        return JudgeInfo("levels")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        self.asked.append((kind, inputs))
        level, pair = LEVELS[inputs["item"]]
        if inputs["item"] == self.mute:
            return Verdict(None, "away")
        return Verdict(level) if kind == "rubric" else Verdict(pair[0] / sum(pair), levels=pair)


def episode(question: Question, answer: str | None = "A report.", judge: Levels | None = None) -> Trajectory:
    t = Trajectory(question.id, question, question.id, 0, "direct", 0, answer=answer)
    t.rewards = asyncio.run(report_rewards(t, judge or Levels()))
    return t


def rewards(t: Trajectory) -> dict[str, float | None]:
    return {reward.name: reward.value for reward in t.rewards}


def test_a_report_with_a_reference_has_both_scores() -> None:
    judge = Levels()
    t = episode(LONG, judge=judge)
    # .75 · 1 + .25 · .5. Held against the reference: .875 of it, to .75 · .5 + .25 · 1 = .625.
    assert rewards(t) == pytest.approx({"rubric": 0.875, "race": 0.875 / 1.5, "race/insight": 2 / 3, "race/readability": 1 / 3})
    assert [(kind, inputs["item"]) for kind, inputs in judge.asked] == [
        ("rubric", "says why"), ("rubric", "reads well"), ("race", "says why"), ("race", "reads well"),
    ]  # fmt: skip
    assert {(inputs["report"], inputs["reference"]) for _, inputs in judge.asked} == {("A report.", "A reference report.")}


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


def test_of_reports_alone_the_comparison_leads() -> None:
    task = with_reports(QA, [LONG, ALONE])
    found = summarize([episode(LONG), episode(ALONE)], 0, 200, task)
    assert (found["headline"], found["n"], found["unscored"]) == ("race", 1, 1)
    assert found["race"] == pytest.approx(0.875 / 1.5)
    assert found["rubric"] == pytest.approx((0.875 + 2 / 3) / 2)
    assert found["others"]["rubric"]["n"] == 2
    assert found["race/insight"] == pytest.approx(2 / 3)
    assert "em" not in found
    assert datasets_table(found).splitlines()[0].split()[:3] == ["data", "set", "n"]
    assert "58.3" in datasets_table(found)


def test_beside_short_answers_they_stand_beside() -> None:
    task = with_reports(QA, [SHORT, ALONE])
    found = summarize([episode(SHORT, "Kel Dax"), episode(ALONE)], 0, 200, task)
    assert (found["headline"], found["em"], found["n"]) == ("em", 1.0, 1)
    assert found["rubric"] == pytest.approx(2 / 3)
    assert with_reports(QA, [SHORT]) is QA
