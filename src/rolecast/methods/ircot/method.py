"""`ircot`: one sentence of reasoning, one search with it, and again; then an answer from the paragraphs (Trivedi et al. 2023)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rolecast.methods.base import MethodConfig, Most, Spoken
from rolecast.methods.ircot.state import IrcotState
from rolecast.methods.ircot.teacher import IrcotTeacher
from rolecast.methods.one_answer import OneAnswer
from rolecast.methods.registry import register
from rolecast.rollout.env import Env
from rolecast.tags import blocks
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Question, Role
from rolecast.world.grammar import sentences

END = "answer is"  # a sentence that says so is the last one


class IrcotConfig(MethodConfig):
    name: Literal["ircot"] = "ircot"  # which method
    max_turns: int = Field(8, ge=1)  # sentences of reasoning
    k: int = Field(4, ge=1)  # passages of a search
    max_paragraphs: int = Field(15, ge=1)  # that are kept in all; when there are so many, no more are taken
    max_tokens: int = Field(256, ge=1)  # tokens of a sentence, and of the answer


@register
class Ircot(OneAnswer):
    name = "ircot"
    config_type = IrcotConfig
    words = ("reasoner", "So", "answer", "Now")
    form = ("think", "answer")
    config: IrcotConfig

    def __init__(self, config: IrcotConfig) -> None:
        super().__init__(config)
        self.roles = {
            "reasoner": Role("reasoner", frozenset({"question", "documents", "reasoning"}), ("</think>",), config.max_tokens),
            "answerer": Role("answerer", frozenset({"question", "documents"}), ("</answer>",), config.max_tokens),
        }

    @property
    def k(self) -> int:
        return self.config.k

    @property
    def most(self) -> Most:
        turns = self.config.max_turns
        return Most({"reasoner": Spoken(turns), "answerer": Spoken(1)}, searches=turns + 1)

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return IrcotTeacher(errors, self.thoughts)

    async def rollout(self, question: Question, env: Env) -> str | None:
        """The first search is with the question. A reply that is no sentence ends the reasoning, as its last sentence does."""
        state = IrcotState(question.text)
        await self._collect(question.text, state, env)
        for _ in range(self.config.max_turns):
            _, sentence = await self.turn(env, self.roles["reasoner"], state, _first_sentence)
            if sentence is None:
                break
            state.reasoning.append(sentence)
            if END in sentence.lower():
                break
            await self._collect(sentence, state, env)
        return await self.answer(env, state)

    async def _collect(self, query: str, state: IrcotState, env: Env) -> None:
        """Adds the paragraphs that are not there yet, as long as there is room for them."""
        known = {document.id for document in state.documents}
        found = [document for document in await env.search(query, self.config.k) if document.id not in known]
        state.documents = [*state.documents, *found][: self.config.max_paragraphs]


def _first_sentence(text: str) -> str | None:
    """Of a reply in its tags; what else it says is let go."""
    found = blocks(text, "think")
    return sentences(found["think"])[0] if found and found["think"] else None
