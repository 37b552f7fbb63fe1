"""DAC's episodes by script: what the searcher says turn by turn, and what the generator says to each of its prompts by their keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from scripted import EMPLOYER, MAYOR, MENTOR, TWO_HOPS, ScriptedEngine, TableRetriever, passage, said

from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.dac import Dac, DacConfig
from rolecast.ports import Completion, GenerateRequest, Judge, Sampling
from rolecast.rollout.collect import play_episode
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.tags import tagged
from rolecast.types import Passage, Question, Trajectory

STOP = tagged("think", "nothing missing") + "<stop>"
FIRST, SECOND, WRONG = said("search", MENTOR.query), said("search", EMPLOYER.query), said("search", MAYOR.query)
MORE = said("search", "more")  # finds nothing that is needed
BROKEN = "<think> next fact</think>"
RIGHT, OTHER, UNKNOWN = "Kel Dax", "Zen Kol", "unknown"
NOISE = [Passage(f"noise{n}", "Noise", f"Noise {n}.") for n in range(15)]
FOUND: Mapping[str, Sequence[Passage]] = {
    MENTOR.query: [passage(MENTOR)],
    EMPLOYER.query: [passage(EMPLOYER)],
    MAYOR.query: [passage(MAYOR)],
    "more": [NOISE[14]],
    TWO_HOPS.text: [*NOISE[:14], passage(MENTOR)],
}


class KeyedEngine(ScriptedEngine):
    """The generator says what stands under its thread's key, or what stands under "*"."""

    def __init__(self, renderer: Renderer, method: Dac, searches: Sequence[str], answers: Mapping[str, str]) -> None:
        super().__init__(renderer, method, {"searcher": searches})
        self._answers = answers

    async def generate(self, request: GenerateRequest) -> Completion:
        if request.stop != ("</answer>",):
            return await super().generate(request)
        key = request.key.rpartition("#")[0].rpartition(".")[2] if "/probe/" in request.key else ""
        answer = self._answers.get(key, self._answers["*"])
        self._lines["generator"] = [answer if answer.startswith("<") else said("answer", answer)]
        return await super().generate(request)


def dac(**options: Any) -> Dac:
    return Dac(DacConfig(**{"prompts": "compact", "generator_samples": 3, **options}))


def episode(
    renderer: Renderer, searches: Sequence[str], answers: Mapping[str, str], method: Dac | None = None, *, question: Question = TWO_HOPS,
    phase: str = "train", member: int = 0, found: Mapping[str, Sequence[Passage]] = FOUND, judge: Judge | None = None,
    max_context: int = 4096,
) -> tuple[Trajectory, KeyedEngine, TableRetriever]:  # fmt: skip
    """The trajectory, scored; in training sampled at temperature 1, elsewhere greedily."""
    method = method or dac()
    engine, retriever = KeyedEngine(renderer, method, searches, answers), TableRetriever(found)
    t = Trajectory(f"g.{member}", question, "g", member, "dac", 0)
    sampling = Sampling(1.0 if phase == "train" else 0.0)
    env = Env(engine, retriever, renderer, t, max_context, sampling, phase)
    asyncio.run(play_episode(method, env, judge or LexicalJudge()))
    assert engine.unsaid == []
    return t, engine, retriever


def value(t: Trajectory, name: str, on: str = "") -> float | None:
    """Of the episode's reward of that name, or of that on an action."""
    [reward] = [reward for reward in t.rewards if reward.name == name and reward.on == (on or t.id)]
    return reward.value


def keys(t: Trajectory) -> list[str]:
    """Of the generator's threads that were probed, in their order."""
    return [thread.key for thread in t.threads_of("generator", probe=True)]
