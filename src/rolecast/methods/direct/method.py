"""`direct`: answers at once, from what the model knows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rolecast.methods.base import MethodConfig
from rolecast.methods.direct.teacher import DirectTeacher
from rolecast.methods.one_answer import AnswerState, OneAnswer
from rolecast.methods.registry import register
from rolecast.rollout.env import Env
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Question, Role


class DirectConfig(MethodConfig):
    name: Literal["direct"] = "direct"  # which method
    max_tokens: int = Field(256, ge=1)  # tokens of the reply


@register
class Direct(OneAnswer):
    name = "direct"
    config_type = DirectConfig
    config: DirectConfig

    def __init__(self, config: DirectConfig) -> None:
        super().__init__(config)
        self.roles = {"answerer": Role("answerer", frozenset({"question"}), ("</answer>",), config.max_tokens)}

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return DirectTeacher()

    async def rollout(self, question: Question, env: Env) -> str | None:
        return await self.answer(env, AnswerState(question.text))
