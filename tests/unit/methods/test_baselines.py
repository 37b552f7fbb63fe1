"""Untrained baselines: one answer, with or without one search."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import EMPLOYER, MENTOR, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, prompt_of

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.base import Method
from rolecast.methods.cot import Cot, CotConfig
from rolecast.methods.direct import Direct, DirectConfig
from rolecast.methods.naive_rag import NaiveRag, NaiveRagConfig
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Question, Trajectory

DIRECT, NAIVE_RAG = Direct(DirectConfig(prompts="compact")), NaiveRag(NaiveRagConfig(prompts="compact"))


def episode(
    renderer: Renderer, method: Method, reply: str = "<answer> Kel Dax</answer>", question: Question = TWO_HOPS, copies: int = 1
) -> tuple[Trajectory, TableRetriever]:
    retriever = TableRetriever([passage(MENTOR), passage(EMPLOYER)] * copies)
    engine = ScriptedEngine(renderer, method, {"answerer": [reply]})
    return play(method, question, engine, retriever, renderer, LexicalJudge()), retriever


def scores(t: Trajectory) -> dict[str, float | None]:
    return {reward.name: reward.value for reward in t.rewards}


def test_direct_answers_without_a_search(renderer: Renderer) -> None:
    t, retriever = episode(renderer, DIRECT)
    assert (t.answer, t.searches, retriever.asked) == ("Kel Dax", 0, [])
    assert prompt_of(t.threads[0]) == f"<|user|>answerer question: {TWO_HOPS.text}<|assistant|>"
    assert scores(t) == {"team.em": 1.0, "team.f1": 1.0}


def test_naive_rag_searches_once_with_the_question(renderer: Renderer) -> None:
    t, retriever = episode(renderer, NAIVE_RAG)
    assert (t.answer, t.searches, retriever.asked) == ("Kel Dax", 1, [(TWO_HOPS.text, 5)])
    documents = f"\n {MENTOR.sentence}\n {EMPLOYER.sentence}"
    assert prompt_of(t.threads[0]) == f"<|user|>answerer question: {TWO_HOPS.text}{documents}<|assistant|>"


@pytest.mark.parametrize(("k", "shown"), [(5, 5), (2, 2)])
def test_naive_rag_reads_the_top_k(renderer: Renderer, k: int, shown: int) -> None:
    t, _ = episode(renderer, NaiveRag(NaiveRagConfig(prompts="compact", k=k)), copies=4)
    assert len(t.retrieved) == prompt_of(t.threads[0]).count("\n") == shown


@pytest.mark.parametrize("method", [DIRECT, NAIVE_RAG])
@pytest.mark.parametrize(
    "reply",
    ["Kel Dax", "<answer> </answer>", "<answer> Kel Dax", "<think> x</think><answer> Kel Dax</answer>", "So: <answer> Kel Dax</answer>"],
)
def test_a_reply_without_its_tags_is_no_answer(renderer: Renderer, method: Method, reply: str) -> None:
    t, _ = episode(renderer, method, reply)
    assert (t.answer, t.status, t.actions[0].valid) == (None, "ok", False)
    assert scores(t) == {"team.em": 0.0, "team.f1": 0.0}


def test_a_wrong_answer_may_share_words(renderer: Renderer) -> None:
    t, _ = episode(renderer, DIRECT, "<answer> Kel Pon</answer>")
    assert scores(t) == {"team.em": 0.0, "team.f1": pytest.approx(0.5)}


@pytest.mark.parametrize("method", [DIRECT, NAIVE_RAG])
def test_no_answer_scores_zero_whatever_the_gold(renderer: Renderer, method: Method) -> None:
    t, _ = episode(renderer, method, "nonsense", Question("q", "Which band is it?", Gold(("The The",))))
    assert set(scores(t).values()) == {0.0}


@pytest.mark.parametrize("method", [DIRECT, NAIVE_RAG])
def test_nothing_is_trained_on_rewards(renderer: Renderer, method: Any) -> None:
    t, _ = episode(renderer, method)
    assert not method.trained
    assert [(stage.name, stage.kind) for stage in method.schedule()] == [("sft", "sft")]
    assert not any(objective.policy or objective.critic for stage in method.schedule() for objective in stage.objectives)
    assert method.credit([t]) == []


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<think> x</think><answer> Kel Dax</answer>", "Kel Dax"),
        ("<think></think><answer>Kel Dax</answer>", "Kel Dax"),
        ("<answer> Kel Dax</answer>", None),
        ("<think> x</think>", None),
        ("<think> x</think><answer> </answer>", None),
        ("<answer> Kel Dax</answer><think> x</think>", None),
    ],
)
def test_cot_thinks_before_it_answers(renderer: Renderer, reply: str, answer: str | None) -> None:
    t, retriever = episode(renderer, Cot(CotConfig(prompts="compact")), reply)
    assert (t.answer, t.status, t.actions[0].valid, retriever.asked) == (answer, "ok", answer is not None, [])
    assert scores(t) == {"team.em": float(answer is not None), "team.f1": float(answer is not None)}
