"""Search-o1: searches inside its reasoning, and a reader who condenses what was found against it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scripted import EMPLOYER, MENTOR, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, prompt_of

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.search_o1 import SearchO1, SearchO1Config
from rolecast.rollout.render import Renderer
from rolecast.types import Trajectory
from rolecast.world.tokenizer import demo_tokenizer

SEARCH = f" next fact<|begin_search_query|> {MENTOR.query}<|end_search_query|>"
ANSWER = " done<answer> Kel Dax</answer>"
CONDENSED = f"<information> {MENTOR.sentence}</information>"


def search_o1(**options: Any) -> SearchO1:
    return SearchO1(SearchO1Config(**{"prompts": "compact", **options}))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    """Of a model from scratch that knows the tags."""
    return Renderer(demo_tokenizer(SearchO1.words, search_o1().tags), search_o1().tags)


def episode(
    renderer: Renderer, said: Sequence[str], read: Sequence[str] = (CONDENSED,), max_context: int = 4096, **options: Any
) -> tuple[Trajectory, ScriptedEngine, TableRetriever]:
    method = search_o1(**options)
    engine = ScriptedEngine(renderer, method, {"reasoner": said, "reader": read})
    retriever = TableRetriever([passage(MENTOR), passage(EMPLOYER)])
    return play(method, TWO_HOPS, engine, retriever, renderer, LexicalJudge(), max_context=max_context), engine, retriever


@pytest.mark.parametrize(
    ("text", "move"),
    [
        (SEARCH, {"search": MENTOR.query}),
        (ANSWER, {"answer": "Kel Dax"}),
        ("<think> a</think> b<answer>c</answer>", {"answer": "c"}),
        ("<answer>c</answer>", {"answer": "c"}),
        (" a<answer> </answer>", None),
        (" a<|begin_search_query|> <|end_search_query|>", None),
        (f"{SEARCH} and more", None),
        (f" a<|begin_search_query|>{SEARCH}", None),
        (" no move", None),
        (" a<answer> c", None),
    ],
)
def test_reasoning_ends_with_a_query_or_the_answer(text: str, move: dict[str, str] | None) -> None:
    assert search_o1().read(text, None) == move  # type: ignore[arg-type]  # what came before does not matter


def test_only_what_the_reader_says_enters_the_reasoning(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [SEARCH, ANSWER])
    reasoner, reader = t.threads
    assert engine.speakers == ["reasoner", "reader", "reasoner"]
    assert reasoner.turns[2].text == f"\n<|begin_search_result|> {MENTOR.sentence}<|end_search_result|>\n"
    assert EMPLOYER.sentence in prompt_of(reader)
    assert f"query: {MENTOR.query}\n" in prompt_of(reader)
    assert TWO_HOPS.text not in prompt_of(reader)
    assert (t.answer, t.status, retriever.asked) == ("Kel Dax", "ok", [(MENTOR.query, 10)])
    assert {reward.name: reward.value for reward in t.rewards} == {"team.em": 1.0, "team.f1": 1.0}


def test_the_reader_sees_the_reasoning_so_far(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [SEARCH, SEARCH, ANSWER], [CONDENSED, CONDENSED])
    first, second = (prompt_of(thread).partition("\nquery: ")[0] for thread in t.threads_of("reader"))
    assert first == f"<|user|>reader reasoning: {SEARCH.strip()}"
    assert second == f"{first}\n<|begin_search_result|> {MENTOR.sentence}<|end_search_result|>\n{SEARCH}"


@pytest.mark.parametrize("reply", ["nonsense", "<information></information>", MENTOR.sentence])
def test_a_reader_that_cannot_be_read_has_found_nothing(renderer: Renderer, reply: str) -> None:
    t, _, _ = episode(renderer, [SEARCH, ANSWER], [reply])
    assert t.threads[0].turns[2].text == "\n<|begin_search_result|> nothing<|end_search_result|>\n"
    assert (t.answer, t.status) == ("Kel Dax", "ok")


def test_a_reply_that_is_no_move_is_asked_for_again(renderer: Renderer) -> None:
    t, _, retriever = episode(renderer, [" next fact", ANSWER], [])
    assert "<|begin_search_query|>" in t.threads[0].turns[2].text
    assert ([action.valid for action in t.actions], t.answer, retriever.asked) == ([False, True], "Kel Dax", [])


def test_searches_are_limited_and_the_last_turn_must_answer(renderer: Renderer) -> None:
    t, engine, retriever = episode(renderer, [SEARCH] * 3, [CONDENSED] * 2, max_turns=2)
    assert (t.answer, t.status, len(retriever.asked), engine.unsaid) == (None, "ok", 2, [])


def test_documents_that_fill_the_readers_context_end_the_episode_as_length(renderer: Renderer) -> None:
    t, engine, _ = episode(renderer, [SEARCH, ANSWER], max_context=44)
    assert (t.status, t.answer, engine.speakers) == ("length", None, ["reasoner"])


def test_its_tags_are_tokens_of_a_model_from_scratch_and_whole_in_its_prompts(renderer: Renderer) -> None:
    assert {
        "<|begin_search_query|>",
        "<|end_search_query|>",
        "<|begin_search_result|>",
        "<|end_search_result|>",
        "<answer>",
    } <= search_o1().tags
    assert len(renderer.encode("<|begin_search_query|>")) == 1
    method = search_o1(prompts="instruct")
    _, text = renderer.prompt(method.messages(method.roles["reasoner"], method.state("q")))
    assert "<|end_search_query|>" in text
