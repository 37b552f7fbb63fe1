"""What methods that answer once share: `direct`, and `naive_rag` after one search with the question.

They need no training. They can be fine-tuned on their own teacher, as the controls of the demo do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rolecast.methods.base import Method, imitation
from rolecast.ports import Embed, Judge
from rolecast.rewards.text import exact_match, token_f1
from rolecast.rollout.env import Env
from rolecast.tags import blocks
from rolecast.types import Passage, Reward, Stage, Trajectory


@dataclass(slots=True)
class AnswerState:
    question: str
    documents: Sequence[Passage] = field(default_factory=list)


class OneAnswer(Method):
    """One role that answers once."""

    trained = False

    def schedule(self) -> tuple[Stage, ...]:
        return (Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",)),)

    async def answer(self, env: Env, state: AnswerState) -> str | None:
        _, answer = await self.turn(env, self.roles["answerer"], state, parse)
        return answer

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        answer, golds = trajectory.answer, trajectory.question.gold.answers
        return [
            Reward("team.em", trajectory.id, exact_match(answer, golds), "text"),
            Reward("team.f1", trajectory.id, token_f1(answer, golds), "text"),
        ]


def parse(text: str) -> str | None:
    """The answer; None where the reply is no answer or says nothing."""
    found = blocks(text, "answer")
    return found["answer"] or None if found else None
