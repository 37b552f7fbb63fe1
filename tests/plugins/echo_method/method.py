"""Coroutine, rewards and what the method brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from echo_method.judge import KINDS
from echo_method.teacher import EchoTeacher
from echo_method.verdicts import RULES
from rolecast.judge.kinds import JudgeKind, Rule
from rolecast.methods.base import Method, MethodConfig
from rolecast.methods.registry import register
from rolecast.ports import Embed, Judge
from rolecast.rollout.env import Env
from rolecast.tags import blocks
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Question, Reward, Role, Trajectory


class EchoConfig(MethodConfig):
    name: Literal["echo"] = "echo"
    shout: bool = False


@dataclass(slots=True)
class EchoState:
    question: str


@register
class Echo(Method):
    name = "echo"
    trained = False
    config_type = EchoConfig
    presets = ("tiny",)
    config: EchoConfig

    def __init__(self, config: EchoConfig) -> None:
        super().__init__(config)
        self.roles = {"echoer": Role("echoer", frozenset({"question"}), ("</answer>",), 64)}

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return EchoTeacher()

    @classmethod
    def judge_kinds(cls) -> Sequence[JudgeKind]:
        return KINDS

    @classmethod
    def verdicts(cls) -> Mapping[str, Rule]:
        return RULES

    async def rollout(self, question: Question, env: Env) -> str | None:
        _, found = await self.turn(env, self.roles["echoer"], EchoState(question.text), lambda text: blocks(text, "answer"))
        return found["answer"] if found else None

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        verdict = await judge.judge("echo.echoer", {"question": trajectory.question.text, "said": trajectory.answer})
        return [Reward("echo", trajectory.id, verdict.score, "judge", verdict.reason)]
