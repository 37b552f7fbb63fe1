"""Scripted episodes that CoDA's tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripted import EMPLOYER, MAYOR, MENTOR, RIVAL, TWO_HOPS, ScriptedEngine, TableRetriever, passage, play, said

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.coda import Coda, CodaConfig
from rolecast.rollout.render import Renderer
from rolecast.tags import tagged
from rolecast.types import Action, Observation, Question, Reward, Thread, Trajectory

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
DIRECT: dict[str, Sequence[str]] = {"planner": [ANSWER]}
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


def finished(f1: float, planner: float, executors: Sequence[float | None], refine: float | None, member: int = 0) -> Trajectory:
    t = Trajectory(f"g.{member}", TWO_HOPS, "g", member, "coda", 0, answer="x")
    roles = ["planner", *["executor"] * len(executors)]
    acts = [Action(f"{t.id}/{n}", (1, 2)[: 1 + n % 2], (0.0, 0.0)[: 1 + n % 2], "v", "", "stop") for n in range(len(roles))]
    see = Observation((5, 6), "")
    t.threads = [
        Thread(f"{t.id}/t{n}", role, "shared", turns=[see, act, see]) for n, (role, act) in enumerate(zip(roles, acts, strict=True))
    ]
    t.rewards = [
        Reward("team.em", t.id, float(f1 == 1)), Reward("team.f1", t.id, f1), Reward("format.planner", t.id, planner),
        *(Reward("format.executor", act.id, value) for act, value in zip(acts[1:], executors, strict=True)), Reward("refine", t.id, refine),
    ]  # fmt: skip
    return t
