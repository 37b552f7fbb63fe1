"""`cot`: thinks before it answers, from what the model knows (Wei et al. 2022)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rolecast.methods.base import MethodConfig
from rolecast.methods.cot.teacher import CotTeacher
from rolecast.methods.one_answer import AnswerState, OneAnswer
from rolecast.methods.registry import register
from rolecast.rollout.env import Env
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Question, Role


class CotConfig(MethodConfig):
    name: Literal["cot"] = "cot"  # which method
    max_tokens: int = Field(512, ge=1)  # tokens of the reply


@register
class Cot(OneAnswer):
    name = "cot"
    config_type = CotConfig
    form = ("think", "answer")
    config: CotConfig

    def __init__(self, config: CotConfig) -> None:
        super().__init__(config)
        self.roles = {"answerer": Role("answerer", frozenset({"question"}), ("</answer>",), config.max_tokens)}

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return CotTeacher()

    async def rollout(self, question: Question, env: Env) -> str | None:
        return await self.answer(env, AnswerState(question.text))
