"""Scripted episodes that M-ASK's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from scripted import EMPLOYER, MAYOR, MENTOR, RIVAL, TWO_HOPS, ScriptedEngine, TableRetriever, passage

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.mask import Mask, MaskConfig
from rolecast.methods.mask.state import UNKNOWN, MaskState
from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.collect import play_episode
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.tags import tagged
from rolecast.types import Action, Question, Trajectory

ROLES = ("planning", "search", "summary", "update", "answer")
DOCUMENTS = {MENTOR.query: [passage(MENTOR), passage(RIVAL)], EMPLOYER.query: [passage(EMPLOYER), passage(MAYOR)]}
END = "<end>"
OPEN = "employer of t1"  # the plan's second step, as it waits for the first


def plan(*pairs: tuple[str, str], answer: str = UNKNOWN) -> str:
    steps = "".join(tagged(f"q{n}", query) + tagged(f"a{n}", said) for n, (query, said) in enumerate(pairs, 1))
    return steps + tagged("predicted_answer", answer)


def answered(text: str) -> str:
    return tagged("predicted_answer", text)


PLAN = plan((MENTOR.query, UNKNOWN), (OPEN, UNKNOWN))
# Two turns, then the end. What `answer` says first is the episode's own answer, then its probe's, of turn 1.
SCRIPT: dict[str, Sequence[str]] = {
    "planning": [PLAN],
    "search": [tagged("search", MENTOR.query), tagged("search", EMPLOYER.query), END],
    "summary": [tagged("evidence", MENTOR.sentence), tagged("evidence", EMPLOYER.sentence)],
    "update": [tagged("Update", "t1"), tagged("Update", "t2")],
    "answer": [answered("Kel Dax"), answered("Vrek Stom")],
}


def mask(**options: Any) -> Mask:
    return Mask(MaskConfig(**{"prompts": "compact", **options}))


class RoleEngine(ScriptedEngine):
    """Planning and answer end with the same tag, so a role is known by its thread."""

    async def generate(self, request: GenerateRequest) -> Completion:
        role = request.key.rpartition("/")[2].partition(".")[0]
        self._role_of[request.stop] = role
        return await super().generate(request)


def episode(
    renderer: Renderer, script: Mapping[str, Sequence[str]] = SCRIPT, method: Mask | None = None, question: Question = TWO_HOPS,
    documents: Any = DOCUMENTS, phase: str = "train", member: int = 0, max_context: int = 4096,
) -> tuple[Trajectory, RoleEngine, TableRetriever]:  # fmt: skip
    method = method or mask()
    engine, retriever = RoleEngine(renderer, method, script), TableRetriever(documents)
    t = Trajectory(f"g.{member}", question, "g", member, method.name, 0)
    env = Env(engine, retriever, renderer, t, max_context, Sampling(0.0), phase)  # type: ignore[arg-type]
    return asyncio.run(play_episode(method, env, LexicalJudge())), engine, retriever


def actions(t: Trajectory, role: str, probe: bool = False) -> list[Action]:
    return [action for thread in t.threads_of(role, probe) for action in thread.actions]


def states(t: Trajectory, role: str, probe: bool = False) -> list[MaskState]:
    return [t.states[action.id] for action in actions(t, role, probe)]


def pairs(state: MaskState) -> list[tuple[str, str]]:
    return [(step.query, step.answer) for step in state.trajectory]
