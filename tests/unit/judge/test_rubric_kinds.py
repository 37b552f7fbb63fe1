"""Rubrics: one criterion on five levels, and the writing of criteria."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scripted import TWO_HOPS

from rolecast.judge.app import make_judge
from rolecast.judge.cache import Cache, CachedJudge
from rolecast.judge.client import HttpJudge
from rolecast.judge.kinds import LEVELS, read_items, read_level, read_levels
from rolecast.judge.openai import OpenAIJudge
from rolecast.judge.settings import JudgeSettings
from rolecast.ports import Verdict
from rolecast.store.local import LocalStore
from rolecast.types import Gold, RubricItem
from tests.endpoint import answering
from tests.live import serving

INPUTS: dict[str, Any] = {"question": TWO_HOPS.text, "gold": TWO_HOPS.gold, "item": "names Kel Dax", "report": "It is Kel Dax."}
WRITTEN = "Here they are.\n- [10] names Kel Dax\n- [-3] says that it is Brol Tan\nScore: 2"
ITEMS = (RubricItem("names Kel Dax", 10.0), RubricItem("says that it is Brol Tan", -3.0))


@pytest.mark.parametrize("level", LEVELS)
def test_a_criterion_is_judged_on_five_levels(level: float) -> None:
    with answering() as (url, endpoint):
        endpoint.replies = [f"So far.\nScore: {level:g}"]
        assert asyncio.run(OpenAIJudge(url, "m").judge("rubric", INPUTS)) == Verdict(level, "So far.")
    prompt = endpoint.bodies[0]["messages"][0]["content"]
    assert '"names Kel Dax"' in prompt
    assert '"It is Kel Dax."' in prompt


@pytest.mark.parametrize("reply", ["Score: 0.6", "Score: 5", "Score: none", ""])
def test_what_is_no_level_is_unscored(reply: str) -> None:
    assert read_level(reply).score is None


def test_two_texts_are_held_against_each_other_and_their_levels_travel() -> None:
    """Over the model's endpoint, the service and its cache."""
    inputs = {
        "question": TWO_HOPS.text,
        "gold": TWO_HOPS.gold,
        "item": "names Kel Dax",
        "first": "It is Kel Dax.",
        "second": "It is Zen Kol.",
    }
    with answering() as (url, endpoint):
        endpoint.replies = ["The first is better.\nScore: 0.75/0.25"]
        service = make_judge(JudgeSettings(judge_backend="openai", judge_openai_url=url, judge_openai_model="m"))
        with serving(*service) as at:
            found = asyncio.run(HttpJudge(at).judge("race", inputs))
    assert found == Verdict(0.75, "The first is better.", levels=(0.75, 0.25))
    prompt = endpoint.bodies[0]["messages"][0]["content"]
    assert prompt.index('"It is Kel Dax."') < prompt.index('"It is Zen Kol."')
    assert "reference" not in prompt  # or the other order would name the wrong one


@pytest.mark.parametrize(
    ("line", "score"),
    [("1/1", 0.5), ("0.5/1", 1 / 3), ("1/0", 1.0), ("0/0", 0.0), ("0/0.25", 0.0), ("1.0/0.50", 2 / 3)],
)  # fmt: skip
def test_the_share_of_the_first_text(line: str, score: float) -> None:
    assert read_levels(f"So far.\nScore: {line}").score == pytest.approx(score)


@pytest.mark.parametrize("reply", ["Score: 1", "Score: 1/", "Score: /1", "Score: 0.6/1", "Score: 1/2", "Score: 1/1/1", "Score: none", ""])
def test_what_is_no_pair_of_levels_is_unscored(reply: str) -> None:
    assert (read_levels(reply).score, read_levels(reply).levels) == (None, None)


def test_criteria_are_read_with_their_weights() -> None:
    assert read_items(WRITTEN) == Verdict(1.0, "2 criteria", items=ITEMS)


@pytest.mark.parametrize(
    "reply",
    [
        "", "Score: 0", "- [10] a\nScore: 2", "- [10] a\n- [5] b\nScore: 1", "- [0] a\nScore: 1", "- [11] a\nScore: 1", "- [-2] a\nScore: 1",
        "- [x] a\nScore: 1", "- [1.5] a\nScore: 1", "- [10] \nScore: 1", "- [10] a", "1. [10] a\nScore: 1",
    ],
)  # fmt: skip
def test_a_rubric_that_cannot_be_read_whole_is_none(reply: str) -> None:
    found = read_items(reply)
    assert (found.score, found.items) == (None, ())
    assert found.reason


def test_a_rubric_travels_over_the_wire_and_through_the_cache(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"question": "Who?", "gold": Gold(("Kel Dax",))}
    with answering() as (url, endpoint):
        endpoint.replies = [WRITTEN]
        for _ in range(2):
            judge = CachedJudge(OpenAIJudge(url, "m"), Cache(LocalStore(tmp_path), "m"))
            judge.cache.sync()
            with serving(*make_judge(JudgeSettings(), judge)) as judge_url:
                assert asyncio.run(HttpJudge(judge_url).judge("rubric.write", asked)).items == ITEMS
    assert len(endpoint.bodies) == 1
