"""`naive_rag`: answers after one search with the question."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rolecast.methods.base import MethodConfig
from rolecast.methods.naive_rag.teacher import NaiveRagTeacher
from rolecast.methods.one_answer import AnswerState, OneAnswer
from rolecast.methods.registry import register
from rolecast.rollout.env import Env
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Question, Role


class NaiveRagConfig(MethodConfig):
    name: Literal["naive_rag"] = "naive_rag"  # which method
    k: int = Field(5, ge=1)  # passages of the search
    max_tokens: int = Field(256, ge=1)  # tokens of the reply


@register
class NaiveRag(OneAnswer):
    name = "naive_rag"
    config_type = NaiveRagConfig
    config: NaiveRagConfig

    def __init__(self, config: NaiveRagConfig) -> None:
        super().__init__(config)
        self.roles = {"answerer": Role("answerer", frozenset({"question", "documents"}), ("</answer>",), config.max_tokens)}

    @property
    def k(self) -> int:
        return self.config.k

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return NaiveRagTeacher()

    async def rollout(self, question: Question, env: Env) -> str | None:
        documents = await env.search(question.text, self.config.k)
        return await self.answer(env, AnswerState(question.text, documents))
