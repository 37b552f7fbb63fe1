"""Scripted episodes that DecomposeR's tests share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scripted import MAYOR, ScriptedEngine, TableRetriever, hop, passage, play

from rolecast.methods.decomposer import Decomposer, DecomposerConfig
from rolecast.methods.decomposer.state import DecomposerState
from rolecast.ports import Judge
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Passage, Question, RubricItem, Trajectory
from rolecast.world.grammar import Fact

MENTOR, EMPLOYER = Fact("Brol Tan", "mentor", "Vrek Stom"), Fact("Vrek Stom", "employer", "Kel Dax")
TWIN = Fact("Brol Tan", "twin", "Zen Kol")
FACTS = (MENTOR, EMPLOYER, MAYOR)
GOLD = Gold(
    ("Kel Dax and Zen Kol",), tuple(map(hop, FACTS)), tuple(fact.sentence for fact in FACTS),
    tuple(RubricItem(fact.sentence) for fact in FACTS),
)  # fmt: skip
PAIR = Question("q3", "Report the employer of the mentor of Brol Tan and the mayor of Dral Vim.", GOLD, "pair", 3)
LONG = Question("q4", PAIR.text, Gold((), GOLD.chain, GOLD.passages, GOLD.rubric), "pair", 3)
DOCUMENTS = {
    MENTOR.query: [passage(MENTOR), passage(TWIN)], EMPLOYER.query: [passage(EMPLOYER)], MAYOR.query: [passage(MAYOR), passage(TWIN)],
}  # fmt: skip

DRAFT = f"search {MENTOR.query}; search {MAYOR.query}; join 1; join 2; answer 3 4"
PLAN = f"search {MENTOR.query}; search {EMPLOYER.query}; search {MAYOR.query}; join 1 2; join 3; answer 4 5"
M, E, Y = f"{MENTOR.sentence}[1]", f"{EMPLOYER.sentence}[4]", f"{MAYOR.sentence}[3]"
REPORT = f"{M} {E} {Y}"
SCRIPT: dict[str, Sequence[str]] = {
    "planner": [f"<graph> {DRAFT}</graph>"],
    "reviser": [f"<graph> {PLAN}</graph><fetch></fetch>"],
    "answerer": [f"<nodes><node id=4> {M} {E}</node><node id=5> {Y}</node></nodes>"],
    "writer": [f"<node id=6> {REPORT}</node><answer> Kel Dax and Zen Kol</answer>"],
}


@dataclass
class Library(TableRetriever):
    """A table of passages with an encoder that gives each text a direction of its own; notes what it was asked."""

    fetched: list[str] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)  # queries of one call
    embedded: list[str] = field(default_factory=list)
    pages: Mapping[str, str] = field(default_factory=dict)  # whole texts by id, where they are longer

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.calls.append(list(queries))
        return await super().search(queries, k)

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        self.fetched += ids
        return [Passage(id, "", self.pages.get(id, id)) for id in ids]

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.embedded += texts
        return np.array([direction(text) for text in texts], dtype=np.float32).reshape(len(texts), 16)


def direction(text: str) -> npt.NDArray[np.float64]:
    """Words add up, so that texts that share some are close."""
    rows = [np.frombuffer(hashlib.sha256(word.encode()).digest()[:16], dtype=np.uint8) - 127.5 for word in text.lower().split()]
    total = np.sum(rows, axis=0) if rows else np.ones(16)
    return np.asarray(total / np.linalg.norm(total))


def decomposer(**options: Any) -> Decomposer:
    return Decomposer(DecomposerConfig(**{"prompts": "compact", **options}))


def episode(
    renderer: Renderer, script: Mapping[str, Sequence[str]] = SCRIPT, judge: Judge | None = None, method: Decomposer | None = None,
    question: Question = PAIR, documents: Any = DOCUMENTS, **options: Any,
) -> tuple[Trajectory, ScriptedEngine, Library]:  # fmt: skip
    method = method or decomposer()
    engine, library = ScriptedEngine(renderer, method, script), Library(documents)
    return play(method, question, engine, library, renderer, judge, **options), engine, library


def states_of(t: Trajectory, role: str) -> list[DecomposerState]:
    return [t.states[action.id] for thread in t.threads_of(role) for action in thread.actions]


def values(t: Trajectory) -> dict[str, float | None]:
    return {reward.name: reward.value for reward in t.rewards}
