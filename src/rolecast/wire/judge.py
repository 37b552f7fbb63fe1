"""The judge's wire: POST /v1/judge {kind, inputs} → {score | null, reason, tokens, items, levels}; GET says who judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from rolecast.methods.registry import judge_kind
from rolecast.ports import JudgeInfo, Verdict
from rolecast.types import RubricItem


class JudgeRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Annotated[str, Field(min_length=1, max_length=100)]
    inputs: dict[str, Any]

    def read(self) -> dict[str, Any]:
        """The inputs as the kind's model reads them (`InputError`); those of an unknown kind as they came."""
        kind = judge_kind(self.kind)
        return dict(kind.read(self.inputs)) if kind else self.inputs


class JudgeReply(BaseModel):
    """`score` null is unscored, which is never 0."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    score: Annotated[float, Field(ge=-1, le=1)] | None
    reason: str
    tokens: Annotated[int, Field(ge=0)] = 0
    items: list[RubricItem] = []
    levels: tuple[float, float] | None = None

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        return cls(score=verdict.score, reason=verdict.reason, tokens=verdict.tokens, items=list(verdict.items), levels=verdict.levels)

    def to_verdict(self) -> Verdict:
        return Verdict(self.score, self.reason, self.tokens, tuple(self.items), self.levels)


class JudgeAbout(BaseModel):
    """As `JudgeInfo`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: Annotated[str, Field(min_length=1)]
    prompts: dict[str, str] = {}

    def to_info(self) -> JudgeInfo:
        return JudgeInfo(self.model, self.prompts)


def judge_request(kind: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    sent = {name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value for name, value in inputs.items()}
    return {"kind": kind, "inputs": sent}
