"""What methods share that answer once: `direct`, `cot`, `naive_rag` after one search with the question, `ircot` after many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rolecast.methods.base import Most, Spoken
from rolecast.methods.untrained import Untrained
from rolecast.rollout.env import Env
from rolecast.tags import blocks
from rolecast.types import Passage


@dataclass(slots=True)
class AnswerState:
    question: str
    documents: Sequence[Passage] = field(default_factory=list)


class OneAnswer(Untrained):
    """Its role `answerer` answers once, in blocks of `form`."""

    form: ClassVar[tuple[str, ...]] = ("answer",)

    @property
    def most(self) -> Most:
        return Most({"answerer": Spoken(1)}, searches=int(self.k > 0))

    async def answer(self, env: Env, state: AnswerState) -> str | None:
        _, answer = await self.turn(env, self.roles["answerer"], state, self.read_answer)
        return answer

    def read_answer(self, text: str) -> str | None:
        """The answer; None where the reply is no answer or says nothing."""
        found = blocks(text, *self.form)
        return found["answer"] or None if found else None
