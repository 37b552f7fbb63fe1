"""Plays recorded episodes again in this process: the recorded samples, with retrieval and judging done anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.base import Method
from rolecast.ports import Completion, GenerateRequest, Retriever
from rolecast.rollout.collect import play_episode
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.types import Trajectory


@dataclass
class Replay:
    """An engine that says what was said."""

    said: list[Completion]
    version: str
    branches: int = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Completion:
        return self.said.pop(0)


def replayed(
    method: Method, renderer: Renderer, retriever: Retriever, recorded: Sequence[Trajectory], max_context: int
) -> list[Trajectory]:
    async def one(t: Trajectory) -> Trajectory:
        actions = [action for thread in t.threads for action in thread.actions]
        engine = Replay([Completion(a.ids, a.logprobs, a.text, a.finish) for a in actions], actions[0].version)
        again = Trajectory(t.id, t.question, t.group, t.member, t.method, t.seed)
        return await play_episode(method, Env(engine, retriever, renderer, again, max_context), LexicalJudge())

    async def everything() -> list[Trajectory]:
        return [await one(t) for t in recorded]

    return asyncio.run(everything())
