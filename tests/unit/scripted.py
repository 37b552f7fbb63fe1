"""Stand-ins for engine, retriever and judge that follow a script, and the facts that most scripts are about."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rolecast.methods.base import Method
from rolecast.ports import Completion, GenerateRequest, Judge, Sampling, Verdict
from rolecast.rollout.collect import play_episode
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.tags import tagged
from rolecast.types import Gold, Hop, Observation, Passage, Question, Thread, Trajectory
from rolecast.world.grammar import Fact

MENTOR = Fact("Brol Tan", "mentor", "Vrek Stom")
EMPLOYER = Fact("Vrek Stom", "employer", "Kel Dax")
MAYOR = Fact("Dral Vim", "mayor", "Zen Kol")
RIVAL = Fact("Brol Tan", "rival", "Grel Pon")


def hop(fact: Fact, query: str = "") -> Hop:
    return Hop(fact.subject, fact.relation, fact.object, fact.sentence, fact.sentence, query or fact.query)


def passage(fact: Fact) -> Passage:
    return Passage(fact.sentence, fact.subject, fact.sentence)


TWO_HOPS = Question(
    "q2", "What is the employer of the mentor of Brol Tan?",
    Gold(("Kel Dax",), (hop(MENTOR), hop(EMPLOYER)), (MENTOR.sentence, EMPLOYER.sentence)), "chain", 2,
)  # fmt: skip


def said(tag: str, content: str, think: str = "next fact") -> str:
    return tagged("think", think) + tagged(tag, content)


class ScriptedEngine:
    """Gives each role its lines in order. A role is known by its stop strings."""

    version = "script/0.0"
    branches = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def __init__(self, renderer: Renderer, method: Method, lines: Mapping[str, Sequence[str]]) -> None:
        self._renderer = renderer
        self._role_of = {role.stop: role.name for role in method.roles.values()}
        self._lines = {role: list(texts) for role, texts in lines.items()}
        self.speakers: list[str] = []
        self.requests: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        role = self._role_of[request.stop]
        assert self._lines.get(role), f"{role} spoke more often than its script"
        ids = self._renderer.encode(self._lines[role].pop(0))
        self.speakers.append(role)
        self.requests.append(request)
        text = self._renderer.decode(ids)
        stopped = any(stop in text for stop in request.stop)
        return Completion(ids, (-0.5,) * len(ids), text, "stop" if stopped else "length")

    @property
    def unsaid(self) -> list[str]:
        return [line for lines in self._lines.values() for line in lines]


@dataclass
class TableRetriever:
    """Passages by query, the same for every query if the table is a list; notes what was asked."""

    table: Mapping[str, Sequence[Passage]] | Sequence[Passage] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.asked += [(query, k) for query in queries]
        return [list(self.table.get(query, []) if isinstance(self.table, Mapping) else self.table)[:k] for query in queries]

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        raise NotImplementedError

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise NotImplementedError


class ScriptedJudge:
    """Scores of each kind in order; notes what it was given."""

    def __init__(self, **scores: Sequence[float | None]) -> None:
        self._scores = {kind.replace("_", "."): list(values) for kind, values in scores.items()}
        self.seen: dict[str, list[Mapping[str, Any]]] = defaultdict(list)

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        self.seen[kind].append(inputs)
        return Verdict(self._scores[kind].pop(0), "scripted")


def play(
    method: Method, question: Question, engine: ScriptedEngine, retriever: TableRetriever, renderer: Renderer, judge: Judge | None = None,
    max_context: int = 4096, member: int = 0, group: str = "g",
) -> Trajectory:  # fmt: skip
    trajectory = Trajectory(f"{group}.{member}", question, group, member, method.name, 0)
    env = Env(engine, retriever, renderer, trajectory, max_context, Sampling(0.0))
    return asyncio.run(play_episode(method, env, judge))


def prompt_of(thread: Thread) -> str:
    first = thread.turns[0]
    assert isinstance(first, Observation)
    return first.text
