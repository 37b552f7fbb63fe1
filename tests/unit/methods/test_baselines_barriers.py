"""Who sees what in the untrained baselines, with a canary in every field, through templates and through whole episodes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from canaries import FOUND, QUESTION, STYLES, canaries_in, canary, document, method_of, read
from scripted import ScriptedEngine, TableRetriever, play

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.ircot.state import IrcotState
from rolecast.methods.one_answer import AnswerState
from rolecast.methods.search_o1.state import SearchO1State
from rolecast.methods.transcript import TranscriptState
from rolecast.rollout.render import Renderer
from rolecast.types import Trajectory

STATES: dict[str, Any] = {
    "cot": lambda: AnswerState(canary("question"), [document("doc")]),
    "react": lambda: TranscriptState(canary("question"), [canary("past")]),
    "ircot": lambda: IrcotState(canary("question"), [document("doc")], [canary("thought")]),
    "search_o1": lambda: SearchO1State(canary("question"), [canary("past")], canary("reasoning"), canary("query"), [document("doc")]),
    "autorefine": lambda: TranscriptState(canary("question"), [canary("past")]),
}
DOCUMENTS = {"doctitle", "doctext"}
TABLE = {
    ("cot", "answerer"): {"question"},
    ("react", "actor"): {"question"},
    ("ircot", "reasoner"): {"question", "thought", *DOCUMENTS},
    ("ircot", "answerer"): {"question", *DOCUMENTS},
    ("search_o1", "reasoner"): {"question"},
    ("search_o1", "reader"): {"reasoning", "query", *DOCUMENTS},
    ("autorefine", "searcher"): {"question"},
}
CELLS = list(TABLE)


def searched(query: str, thought: str = "plan") -> str:
    return f" {canary(thought)}<|begin_search_query|> {canary(query)}<|end_search_query|>"


LINES: dict[str, dict[str, list[str]]] = {
    "cot": {"answerer": [f"<think> {canary('plan')}</think><answer> x</answer>"]},
    "react": {
        "actor": [
            f"Thought: {canary('plan')}\nAction: Search[{canary('first')}]\n",
            f"Thought: on\nAction: Search[{canary('second')}]\n",
            "Thought: done\nAction: Finish[x]\n",
        ]
    },
    "ircot": {
        "reasoner": [
            f"<think> {canary('first')}</think>",
            f"<think> {canary('second')}</think>",
            f"<think> So the answer is {canary('guess')}.</think>",
        ],
        "answerer": ["<think> y</think><answer> x</answer>"],
    },
    "search_o1": {
        "reasoner": [searched("first"), searched("second", "next"), f" {canary('last')}<answer> x</answer>"],
        "reader": [f"<information> {canary('keptone')}</information>", f"<information> {canary('kepttwo')}</information>"],
    },
    "autorefine": {
        "searcher": [
            f"<think> {canary('plan')}</think><search> {canary('first')}</search>",
            f"<refine> {canary('kept')}</refine><think> on</think><search> {canary('second')}</search>",
            "<refine> z</refine><think> done</think><answer> x</answer>",
        ]
    },
}


def played(renderer: Renderer, name: str, style: str, **options: Any) -> Trajectory:
    method = method_of(name, style, **options)
    engine = ScriptedEngine(renderer, method, LINES[name])
    t = play(method, QUESTION, engine, TableRetriever(FOUND), renderer, LexicalJudge())
    assert (t.status, t.answer, engine.unsaid) == ("ok", "x", [])
    assert all(action.valid for action in t.actions)
    return t


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("name", "role"), CELLS)
def test_a_prompt_holds_exactly_what_its_role_sees(name: str, role: str, style: str) -> None:
    method = method_of(name, style)
    found = canaries_in(str(method.messages(method.roles[role], STATES[name]())))
    assert found == TABLE[name, role] - ({"doctitle"} if style == "compact" else set())


def test_every_role_is_in_the_table() -> None:
    assert {(name, role) for name in STATES for role in method_of(name, "compact").roles} == set(TABLE)


@pytest.mark.parametrize(("name", "role"), CELLS)
def test_a_template_is_given_only_the_fields_that_its_role_sees(name: str, role: str) -> None:
    method, state = method_of(name, "instruct"), STATES[name]()
    for field in fields(state):
        if field.name not in method.roles[role].sees:
            setattr(state, field.name, canary("changed"))
    assert "changed" not in canaries_in(str(method.messages(method.roles[role], state)))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", STATES)
def test_an_empty_state_renders(name: str, style: str) -> None:
    method = method_of(name, style)
    state = type(STATES[name]())("q")
    assert all(message["content"] for role in method.roles.values() for message in method.messages(role, state))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", STATES)
def test_no_role_ever_reads_gold_or_given_state_or_ids(renderer: Renderer, name: str, style: str) -> None:
    t = played(renderer, name, style)
    seen = set().union(*(canaries_in(turn.text) for thread in t.threads for turn in thread.turns))
    kept = set().union(*(canaries_in(repr(state)) for state in t.states.values()))
    assert "question" in seen
    assert not {word for word in seen if word.startswith(("gold", "given")) or word in ("id", "type") or word.endswith("id")}
    assert not {word for word in kept if word.startswith(("gold", "given"))}


def shown(style: str, *names: str) -> set[str]:
    return {f"{name}{part}" for name in names for part in (("title", "text") if style == "instruct" else ("text",))}


@pytest.mark.parametrize("style", STYLES)
def test_cot_reads_its_question_alone(renderer: Renderer, style: str) -> None:
    assert read(played(renderer, "cot", style), "answerer") == [{"question"}]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("name", "role"), [("react", "actor"), ("autorefine", "searcher")])
def test_a_transcript_has_its_question_and_what_it_found(renderer: Renderer, name: str, role: str, style: str) -> None:
    t = played(renderer, name, style)
    assert read(t, role) == [{"question"}, shown(style, "one", "noise"), shown(style, "two")]
    assert len(t.threads) == 1


@pytest.mark.parametrize("style", STYLES)
def test_ircot_reads_paragraphs_and_its_own_sentences_and_its_answerer_no_sentence(renderer: Renderer, style: str) -> None:
    t = played(renderer, "ircot", style)
    one, two = shown(style, "one"), shown(style, "one", "noise")
    three = shown(style, "one", "noise", "two")
    assert read(t, "reasoner") == [{"question", *one}, {"question", "first", *two}, {"question", "first", "second", *three}]
    assert read(t, "answerer") == [{"question", *three}]


@pytest.mark.parametrize("style", STYLES)
def test_search_o1_reasons_without_documents_and_reads_without_the_question(renderer: Renderer, style: str) -> None:
    t = played(renderer, "search_o1", style)
    assert read(t, "reasoner") == [{"question"}, {"keptone"}, {"kepttwo"}]
    assert read(t, "reader") == [
        {"plan", "first", *shown(style, "one", "noise")},
        {"plan", "first", "keptone", "next", "second", *shown(style, "two")},
    ]
    [reasoner, *readers] = t.threads
    assert [reader.parent for reader in readers] == [reasoner.id] * 2
