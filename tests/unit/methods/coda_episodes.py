"""Scripted episodes that CoDA's tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripted import EMPLOYER, MAYOR, MENTOR, RIVAL, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, said

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.coda import Coda, CodaConfig
from rolecast.rollout.render import Renderer
from rolecast.tags import tagged
from rolecast.types import Observation, Question, Thread, Trajectory

DOCUMENTS = {MENTOR.query: [passage(MENTOR), passage(RIVAL)], EMPLOYER.query: [passage(EMPLOYER), passage(MAYOR)]}
INVALID = "<think> next fact</think>"
ANSWER = said("answer", "Kel Dax")
Script = Mapping[str, Sequence[str]]


def refined(text: str, tag: str, content: str) -> str:
    return tagged("refine", text) + tagged(tag, content)


def worked(fact: Any, result: str | None = None) -> list[str]:
    """An executor's replies: one search, then what the fact says."""
    return [said("search", fact.query), refined(fact.sentence, "answer", fact.object if result is None else result)]


PLANNER = [said("task", MENTOR.query), said("task", EMPLOYER.query), ANSWER]
SCRIPT: dict[str, Sequence[str]] = {"planner": PLANNER, "executor": [*worked(MENTOR), *worked(EMPLOYER)]}
MONOLITH: dict[str, Sequence[str]] = {
    "monolith": [
        said("search", MENTOR.query), refined(MENTOR.sentence, "search", EMPLOYER.query), refined(EMPLOYER.sentence, "answer", "Kel Dax"),
    ]
}  # fmt: skip
NESTED: dict[str, Sequence[str]] = {
    "planner": [said("task", "employer of the mentor of Brol Tan"), ANSWER],
    "lead": [said("task", MENTOR.query), said("task", EMPLOYER.query), ANSWER],
    "executor": [*worked(MENTOR), *worked(EMPLOYER)],
}


def coda(**options: Any) -> Coda:
    return Coda(CodaConfig(**{"prompts": "compact", **options}))


def episode(
    renderer: Renderer, script: Script, method: Coda | None = None, question: Question = TWO_HOPS, documents: Any = DOCUMENTS,
    retriever: Any = None, **options: Any,
) -> tuple[Trajectory, ScriptedEngine]:  # fmt: skip
    method = method or coda()
    engine = ScriptedEngine(renderer, method, script)
    return play(method, question, engine, retriever or TableRetriever(documents), renderer, LexicalJudge(), **options), engine


def observed(thread: Thread) -> list[str]:
    """What the thread was told after its prompt."""
    return [turn.text for turn in thread.turns[1:] if isinstance(turn, Observation)]


def earned(t: Trajectory, name: str) -> list[float | None]:
    return [reward.value for reward in t.rewards if reward.name == name]
