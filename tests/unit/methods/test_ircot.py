"""IRCoT: a sentence, a search with it, and again; paragraphs add up to their limit; then an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scripted import EMPLOYER, MAYOR, MENTOR, RIVAL, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, prompt_of

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.ircot import Ircot, IrcotConfig
from rolecast.rollout.render import Renderer
from rolecast.types import Trajectory

FIRST, SECOND, LAST = "Now mentor of Brol Tan.", "Now employer of Vrek Stom.", "So the answer is Kel Dax."
FOUND = {
    TWO_HOPS.text: [passage(RIVAL)],
    FIRST: [passage(MENTOR), passage(RIVAL)],
    SECOND: [passage(EMPLOYER), passage(MENTOR), passage(MAYOR)],
}
ANSWER = "<think> x</think><answer> Kel Dax</answer>"


def thought(text: str) -> str:
    return f"<think> {text}</think>"


def ircot(**options: Any) -> Ircot:
    return Ircot(IrcotConfig(**{"prompts": "compact", **options}))


def episode(
    renderer: Renderer, thoughts: Sequence[str], answer: str = ANSWER, max_context: int = 4096, **options: Any
) -> tuple[Trajectory, ScriptedEngine, TableRetriever]:
    method = ircot(**options)
    engine, retriever = ScriptedEngine(renderer, method, {"reasoner": thoughts, "answerer": [answer]}), TableRetriever(FOUND)
    return play(method, TWO_HOPS, engine, retriever, renderer, LexicalJudge(), max_context=max_context), engine, retriever


def read(t: Trajectory, role: str = "answerer") -> list[str]:
    """The paragraphs in the prompts of a role's last turn."""
    lines = prompt_of(t.threads_of(role)[-1]).splitlines()
    return [line.removesuffix("<|assistant|>").strip() for line in lines[1:] if line.startswith(" ")]


def test_it_searches_with_the_question_and_with_every_sentence_but_the_last(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [thought(FIRST), thought(SECOND), thought(LAST)])
    assert retriever.asked == [(TWO_HOPS.text, 4), (FIRST, 4), (SECOND, 4)]
    assert engine.speakers == ["reasoner", "reasoner", "reasoner", "answerer"]
    assert (t.answer, t.status, t.searches) == ("Kel Dax", "ok", 3)
    assert read(t) == [RIVAL.sentence, MENTOR.sentence, EMPLOYER.sentence, MAYOR.sentence]  # each once, as they were found
    assert {reward.name: reward.value for reward in t.rewards} == {"team.em": 1.0, "team.f1": 1.0}


def test_every_sentence_is_said_in_a_context_of_its_own(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [thought(FIRST), thought(SECOND), thought(LAST)])
    prompts = [prompt_of(thread) for thread in t.threads_of("reasoner")]
    assert [f"reasoner: {FIRST}" in prompt for prompt in prompts] == [False, True, True]
    assert [EMPLOYER.sentence in prompt for prompt in prompts] == [False, False, True]


@pytest.mark.parametrize(
    ("cap", "kept"), [(1, [RIVAL]), (2, [RIVAL, MENTOR]), (3, [RIVAL, MENTOR, EMPLOYER]), (15, [RIVAL, MENTOR, EMPLOYER, MAYOR])]
)
def test_paragraphs_add_up_to_their_limit(renderer: Renderer, cap: int, kept: list[Any]) -> None:
    t, _, _ = episode(renderer, [thought(FIRST), thought(SECOND), thought(LAST)], max_paragraphs=cap)
    assert read(t) == [fact.sentence for fact in kept]


@pytest.mark.parametrize("max_turns", [1, 2])
def test_sentences_are_limited(renderer: Renderer, max_turns: int) -> None:
    t, engine, retriever = episode(renderer, [thought(FIRST), thought(SECOND)][:max_turns], max_turns=max_turns)
    assert (t.answer, len(retriever.asked), engine.unsaid) == ("Kel Dax", 1 + max_turns, [])


def test_of_several_sentences_the_first_counts(renderer: Renderer) -> None:
    t, _, retriever = episode(renderer, [thought(f"{FIRST} {LAST}"), thought(SECOND), thought(LAST)])
    assert [query for query, _ in retriever.asked] == [TWO_HOPS.text, FIRST, SECOND]
    assert prompt_of(t.threads_of("reasoner")[1]).endswith(f"reasoner: {FIRST}<|assistant|>")


@pytest.mark.parametrize("reply", ["nonsense", "<think></think>", FIRST, f"<think> {FIRST}"])
def test_a_reply_that_is_no_sentence_ends_the_reasoning(renderer: Renderer, reply: str) -> None:
    t, engine, retriever = episode(renderer, [thought(FIRST), reply])
    assert ([action.valid for action in t.actions], t.answer) == ([True, False, True], "Kel Dax")
    assert (t.status, len(retriever.asked), engine.unsaid) == ("ok", 2, [])


@pytest.mark.parametrize("reply", ["<answer> Kel Dax</answer>", "<think> x</think><answer> </answer>", "nonsense"])
def test_an_answer_without_its_form_is_none(renderer: Renderer, reply: str) -> None:
    t, _, _ = episode(renderer, [thought(LAST)], reply)
    assert (t.answer, t.status, t.actions[-1].valid) == (None, "ok", False)


def test_paragraphs_that_outgrow_the_context_end_the_episode_as_length(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [thought(FIRST), thought(SECOND)], max_context=56)
    assert (t.status, t.answer) == ("length", None)
