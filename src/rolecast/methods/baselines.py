"""Methods that need no training: `direct` answers at once, `naive_rag` after one search with the question.

They can be fine-tuned on their own teacher, as the controls of the demo do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from rolecast.methods.base import Method, MethodConfig, imitation
from rolecast.methods.tags import blocks
from rolecast.ports import Judge
from rolecast.rewards.text import exact_match, token_f1
from rolecast.rollout.env import Env
from rolecast.types import Passage, Question, Reward, Role, Stage, Trajectory


class DirectConfig(MethodConfig):
    name: Literal["direct"] = "direct"
    max_tokens: int = Field(256, ge=1)


class NaiveRagConfig(MethodConfig):
    name: Literal["naive_rag"] = "naive_rag"
    k: int = Field(5, ge=1)
    max_tokens: int = Field(256, ge=1)


@dataclass(slots=True)
class AnswerState:
    question: str
    documents: Sequence[Passage] = field(default_factory=list)


class _OneAnswer(Method):
    """One role that answers once."""

    trained = False

    def schedule(self) -> tuple[Stage, ...]:
        return (Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",)),)

    async def _answer(self, env: Env, state: AnswerState) -> str | None:
        _, answer = await self.turn(env, self.roles["answerer"], state, parse)
        return answer

    async def score(self, trajectory: Trajectory, judge: Judge) -> list[Reward]:
        answer, golds = trajectory.answer, trajectory.question.gold.answers
        return [
            Reward("team.em", trajectory.id, exact_match(answer, golds), "text"),
            Reward("team.f1", trajectory.id, token_f1(answer, golds), "text"),
        ]


class Direct(_OneAnswer):
    name = "direct"
    config: DirectConfig

    def __init__(self, config: DirectConfig) -> None:
        super().__init__(config)
        self.roles = {"answerer": Role("answerer", frozenset({"question"}), ("</answer>",), config.max_tokens)}

    async def rollout(self, question: Question, env: Env) -> str | None:
        return await self._answer(env, AnswerState(question.text))


class NaiveRag(_OneAnswer):
    name = "naive_rag"
    config: NaiveRagConfig

    def __init__(self, config: NaiveRagConfig) -> None:
        super().__init__(config)
        self.roles = {"answerer": Role("answerer", frozenset({"question", "documents"}), ("</answer>",), config.max_tokens)}

    async def rollout(self, question: Question, env: Env) -> str | None:
        documents = await env.search(question.text, self.config.k)
        return await self._answer(env, AnswerState(question.text, documents))


def parse(text: str) -> str | None:
    """The answer; None where the reply is no answer or says nothing."""
    found = blocks(text, "answer")
    return found["answer"] or None if found else None
