"""Scripted episodes that DECOR's tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripted import (
    EMPLOYER,
    MAYOR,
    MENTOR,
    RIVAL,
    TWO_HOPS,
    ScriptedEngine,
    TableRetriever,
    passage,
    play,
    said,
)

from rolecast.methods.decor import Decor, DecorConfig
from rolecast.methods.decor.state import DecorState
from rolecast.ports import Judge
from rolecast.rollout.render import Renderer
from rolecast.types import Question, Trajectory

ROLES = ("planner", "filter", "answerer")
DOCUMENTS = {MENTOR.query: [passage(MENTOR), passage(RIVAL)], EMPLOYER.query: [passage(EMPLOYER), passage(MAYOR)]}
STOP = said("search", "None", "nothing missing")
SCRIPT: dict[str, Sequence[str]] = {
    "planner": [said("search", MENTOR.query), said("search", EMPLOYER.query), STOP],
    "filter": [said("filter", MENTOR.sentence, "keep"), said("filter", EMPLOYER.sentence, "keep")],
    "answerer": [said("answer", "Kel Dax")],
}


def decor(**options: Any) -> Decor:
    return Decor(DecorConfig(**{"prompts": "compact", "condenser": "extractive", **options}))


def episode(
    renderer: Renderer, script: Mapping[str, Sequence[str]], judge: Judge | None = None, method: Decor | None = None, question: Question = TWO_HOPS,
    documents: Any = DOCUMENTS, **options: Any,
) -> tuple[Trajectory, ScriptedEngine, TableRetriever]:  # fmt: skip
    method = method or decor()
    engine, retriever = ScriptedEngine(renderer, method, script), TableRetriever(documents)
    return play(method, question, engine, retriever, renderer, judge, **options), engine, retriever


def states_of(t: Trajectory, role: str) -> list[DecorState]:
    return [t.states[action.id] for thread in t.threads_of(role) for action in thread.actions]
