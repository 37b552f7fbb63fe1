"""AutoRefine: after documents comes what matters in them, before anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scripted import EMPLOYER, MENTOR, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, said

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.autorefine import AutoRefine, AutoRefineConfig
from rolecast.rollout.render import Renderer
from rolecast.types import Observation, Trajectory

SEARCH, ANSWER = said("search", MENTOR.query), said("answer", "Kel Dax")
REFINE = f"<refine> {MENTOR.sentence}</refine>"


def autorefine(**options: Any) -> AutoRefine:
    return AutoRefine(AutoRefineConfig(**{"prompts": "compact", **options}))


def episode(renderer: Renderer, lines: Sequence[str], **options: Any) -> tuple[Trajectory, ScriptedEngine, TableRetriever]:
    method = autorefine(**options)
    engine, retriever = ScriptedEngine(renderer, method, {"searcher": lines}), TableRetriever([passage(MENTOR), passage(EMPLOYER)])
    return play(method, TWO_HOPS, engine, retriever, renderer, LexicalJudge()), engine, retriever


def valid(t: Trajectory) -> list[bool]:
    return [action.valid for action in t.actions]


def test_documents_are_refined_in_the_same_transcript(renderer: Renderer) -> None:
    t, _, retriever = episode(renderer, [SEARCH, REFINE + SEARCH, REFINE + ANSWER])
    [thread] = t.threads
    assert thread.turns[2].text == f"\n<documents> {MENTOR.sentence}\n {EMPLOYER.sentence}</documents>\n"
    assert (t.answer, t.status, valid(t), len(retriever.asked)) == ("Kel Dax", "ok", [True] * 3, 2)
    assert {reward.name: reward.value for reward in t.rewards} == {"team.em": 1.0, "team.f1": 1.0}


def test_without_a_search_there_is_nothing_to_refine(renderer: Renderer) -> None:
    assert episode(renderer, [ANSWER])[0].answer == "Kel Dax"
    t, _, _ = episode(renderer, [REFINE + ANSWER, ANSWER])
    assert (valid(t), t.answer) == ([False, True], "Kel Dax")


@pytest.mark.parametrize(
    "reply",
    [
        ANSWER, SEARCH, "<refine> x</refine>", f"<think> x</think>{REFINE}<answer> Kel Dax</answer>", f"{REFINE}<answer> Kel Dax</answer>",
        REFINE + REFINE + ANSWER, REFINE + said("answer", ""), REFINE + said("search", " "), "nonsense",
    ],
)  # fmt: skip
def test_what_does_not_refine_first_is_asked_for_again(renderer: Renderer, reply: str) -> None:
    t, engine, retriever = episode(renderer, [SEARCH, reply, REFINE + ANSWER])
    again = t.threads[0].turns[4]
    assert isinstance(again, Observation)
    assert "<refine>" in again.text
    assert (again.sources, valid(t), t.answer, len(retriever.asked), engine.unsaid) == ((), [True, False, True], "Kel Dax", 1, [])


def test_after_a_reply_that_could_not_be_read_the_documents_are_still_to_be_refined(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [SEARCH, "nonsense", ANSWER, REFINE + ANSWER])
    assert (valid(t), t.answer) == ([True, False, False, True], "Kel Dax")


def test_an_empty_refinement_says_that_nothing_matters(renderer: Renderer) -> None:
    assert episode(renderer, [SEARCH, "<refine></refine>" + ANSWER])[0].answer == "Kel Dax"


def test_searches_are_limited(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [SEARCH, REFINE + SEARCH, REFINE + SEARCH], max_turns=2)
    assert (t.answer, t.status, len(retriever.asked), engine.unsaid) == (None, "ok", 2, [])
