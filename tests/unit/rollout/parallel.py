"""A method whose executors play at once, and what it needs around it: a retriever that answers late, an engine that repeats."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.base import Method, MethodConfig
from rolecast.ports import Completion, Embed, GenerateRequest, Judge, Retriever, Sampling
from rolecast.rollout.collect import Collector
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.env import Env
from rolecast.types import Gold, Message, Passage, Question, Reward, Role, Trajectory
from tests.tiny import RENDERER, tiny_model

ROLE = Role("speaker", frozenset({"text"}), ("</answer>",), 6)


def question(number: int = 0) -> Question:
    return Question(f"q{number}", f"What is the mayor of town {number}?", Gold(("x",)))


@dataclass
class State:
    text: str
    notes: list[str] = field(default_factory=list)


def prompt(text: str = "x") -> list[Message]:
    return [{"role": "user", "content": text}]


async def say(env: Env, text: str, **options: Any) -> tuple[Any, str | None]:
    """One turn of the speaker in a context that says `text`."""
    state = options.pop("state", State(text))
    return await env.open(ROLE, prompt(text), state=state, **options).act(lambda said: said)


class Parallel(Method):
    """Three executors at once, each with two searches and two turns, the second of which has a branch again; then an answer."""

    name = "parallel"
    trained = True

    def __init__(self) -> None:
        super().__init__(MethodConfig(name="parallel"))
        self.roles = {"speaker": ROLE}

    def messages(self, role: Role, state: State) -> list[Message]:
        return prompt(state.text)

    async def rollout(self, question: Question, env: Env) -> str | None:
        branches = {f"e{n}": lambda part, n=n: self._execute(f"{question.text} part {n}", part) for n in range(3)}
        _, answer = await say(env, " ".join(await env.gather(branches)))
        return answer

    async def _execute(self, text: str, env: Env) -> str:
        [passage] = await env.search(text, 1)
        _, first = await say(env, passage.text)
        [[second], [third]] = await env.search_all([text, f"{first}"], 1)
        done = await env.gather({"a": lambda part: say(part, second.text), "b": lambda part: say(part, third.text)})
        return " ".join(said or "" for _, said in done)

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        verdict = await judge.judge(
            "answer", {"question": trajectory.question.text, "prediction": trajectory.answer, "gold": trajectory.question.gold}
        )
        return [Reward("team.judge", trajectory.id, verdict.score)]


@dataclass
class Late:
    """Finds one passage per query, after a while that a seed draws: answers come in another order for each seed."""

    seed: int = 0
    longest: float = 0.004  # seconds
    fails_on: str = "\0"
    calls: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.calls.append(list(queries))
        await asyncio.sleep(self._rng.uniform(0, self.longest))
        if any(self.fails_on in query for query in queries):
            raise OSError("the index is on fire")
        return [[Passage(f"p of {query}", "title", f"The {query} is here.")] for query in queries]

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        return [Passage(id, "title", f"all of {id}") for id in ids]

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise NotImplementedError


@dataclass
class Repeats:
    """An engine that says what `reply` makes of a request, once `gate` lets it; notes the requests."""

    reply: Callable[[GenerateRequest], str] = lambda request: " yes</answer>"
    gate: Callable[[GenerateRequest], Awaitable[object]] = lambda request: asyncio.sleep(0)
    finish: Any = "stop"
    version: str = "v/0.0"
    branches: int = 1
    requests: list[GenerateRequest] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        await self.gate(request)
        ids = RENDERER.encode(self.reply(request))[: request.max_tokens]
        return Completion(ids, (-0.5,) * len(ids), RENDERER.decode(ids), self.finish)


def env_of(engine: Repeats, retriever: Retriever | None = None, max_context: int = 200, seed: int = 7) -> Env:
    trajectory = Trajectory("g.0", question(), "g", 0, "parallel", seed)
    return Env(engine, retriever or Late(longest=0), RENDERER, trajectory, max_context, Sampling(1.0))


def collector(
    method: Method, retriever: Retriever, judge: Judge | None = None, in_flight: int = 8, lockstep: bool = True, max_batch: int = 3
) -> Collector:
    engine = TransformersEngine({"shared": tiny_model(scale=8.0)}, RENDERER, max_batch, 256, "v/0.1", lockstep)
    return Collector(method, engine, retriever, judge or LexicalJudge(), RENDERER, 5, 256, in_flight)
