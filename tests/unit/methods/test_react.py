"""ReAct: its two lines, its loop, and what it does with a step that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scripted import EMPLOYER, MENTOR, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.react import React, ReactConfig
from rolecast.rollout.render import Renderer
from rolecast.types import Passage, Trajectory
from rolecast.world.tokenizer import demo_tokenizer

SEARCH = f"Thought: next fact\nAction: Search[ {MENTOR.query}]\n"
FINISH = "Thought: done\nAction: Finish[ Kel Dax]\n"
NONSENSE = "Thought: next fact\nAction: Lookup[ x]\n"


def react(**options: Any) -> React:
    return React(ReactConfig(**{"prompts": "compact", **options}))


def episode(
    renderer: Renderer, lines: Sequence[str], method: React | None = None, passages: Sequence[Passage] = (passage(MENTOR), passage(EMPLOYER)),
    **options: Any,
) -> tuple[Trajectory, ScriptedEngine, TableRetriever]:  # fmt: skip
    method = method or react()
    engine, retriever = ScriptedEngine(renderer, method, {"actor": lines}), TableRetriever(list(passages))
    return play(method, TWO_HOPS, engine, retriever, renderer, LexicalJudge(), **options), engine, retriever


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("Thought: a\nAction: Search[b c]\n", {"search": "b c"}),
        ("Thought: a\nAction: Finish[ b ]", {"answer": "b"}),
        (" Thought: two\nlines\nAction: Search[b]", {"search": "b"}),
        ("Thought: a\nAction: Search[the album [1997 edition] of b]\n", {"search": "the album [1997 edition] of b"}),
        ("Thought: a\nAction: Finish[b]<eos>", {"answer": "b"}),
        ("Thought: a\nAction: Search[b] Finish[c]\n", {"search": "b"}),
        ("Thought: a\nAction: Search[]\n", None),
        ("Thought: a\nAction: Search[ ]\n", None),
        ("Thought: a\nAction: Search[b\n]\n", None),
        ("Thought: a\nAction: search[b]\n", None),
        ("Thought: a Action: Search[b]\n", None),
        ("Action: Search[b]\n", None),
        ("So, Thought: a\nAction: Search[b]\n", None),
        ("Thought: a\nAction: Search b\n", None),
    ],
)
def test_a_step_is_a_thought_and_an_action(text: str, move: dict[str, str] | None) -> None:
    assert react().read(text, None) == move  # type: ignore[arg-type]  # what came before does not matter


def test_observations_follow_actions_in_one_transcript(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [SEARCH, FINISH])
    [thread] = t.threads
    assert thread.turns[2].text == f"Observation: {MENTOR.sentence}\n {EMPLOYER.sentence}\n"
    assert engine.requests[1].ids == tuple(token for turn in thread.turns[:3] for token in turn.ids)
    assert (t.answer, t.status, t.searches, retriever.asked) == ("Kel Dax", "ok", 1, [(MENTOR.query, 3)])
    assert {reward.name: reward.value for reward in t.rewards} == {"team.em": 1.0, "team.f1": 1.0}


def test_a_step_that_cannot_be_read_is_asked_for_again(renderer: Renderer) -> None:
    t, _, retriever = episode(renderer, [NONSENSE, SEARCH, FINISH])
    assert t.threads[0].turns[2].text.startswith("Observation: Invalid action.")
    assert ([action.valid for action in t.actions], t.answer, len(retriever.asked)) == ([False, True, True], "Kel Dax", 1)


@pytest.mark.parametrize(("max_turns", "searches"), [(1, 1), (3, 3)])
def test_searches_are_limited_and_the_last_turn_must_finish(renderer: Renderer, max_turns: int, searches: int) -> None:
    method = react(max_turns=max_turns)
    t, engine, _ = episode(renderer, [SEARCH] * max_turns + [FINISH], method)
    assert (t.answer, t.searches, engine.unsaid) == ("Kel Dax", searches, [])
    t, _, _ = episode(renderer, [SEARCH] * (max_turns + 1), method)
    assert (t.answer, t.status, t.searches) == (None, "ok", searches)


def test_a_transcript_that_outgrows_its_context_ends_as_length(renderer: Renderer) -> None:
    t, engine, _ = episode(renderer, [SEARCH, FINISH], max_context=60)
    assert (t.status, t.answer, len(engine.speakers)) == ("length", None, 1)


def test_a_long_observation_is_cut_before_its_line_ends(renderer: Renderer) -> None:
    long = Passage("p", "", " ".join(["one"] * 60))
    t, _, _ = episode(renderer, [SEARCH, FINISH], react(observation_tokens=40), [long])
    text = t.threads[0].turns[2].text
    assert (text.startswith("Observation: one"), text.endswith(" one\n"), len(renderer.encode(text))) == (True, True, 40)


def test_a_model_from_scratch_has_the_words_of_its_steps() -> None:
    tokenizer = demo_tokenizer(React.words, react().tags)
    assert len(tokenizer.encode("Thought: next fact\nAction: Search[", add_special_tokens=False)) == 9
