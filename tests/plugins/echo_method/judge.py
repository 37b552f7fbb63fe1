"""Whether the question was repeated."""

from __future__ import annotations

from importlib.resources import files

from pydantic import BaseModel

from rolecast.judge.kinds import JudgeKind, read_sign


class EchoInputs(BaseModel):
    question: str
    said: str | None


KINDS = (JudgeKind("echo.echoer", files(__package__) / "judge_prompts" / "echoer.jinja", EchoInputs, read_sign),)
