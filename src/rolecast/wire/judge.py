"""The judge's wire: POST /v1/judge {kind, inputs} → {score | null, reason}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rolecast.ports import Verdict
from rolecast.types import Gold


class Inputs(BaseModel):
    """What methods give to judges today, each optional; a method may send more, which passes as it is."""

    model_config = ConfigDict(extra="allow", frozen=True)

    question: str = ""
    gold: Gold = Gold(())
    prediction: str | None = None
    output: str = ""
    content: str = ""
    memory: str = ""
    sub_query: str = ""
    queries: list[str] = []
    documents: list[str] = []

    def given(self) -> dict[str, Any]:
        """The keys that were sent: a rule that misses one must say so, not judge a default."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class JudgeRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Annotated[str, Field(min_length=1, max_length=100)]
    inputs: Inputs


class JudgeReply(BaseModel):
    """`score` null is unscored, which is never 0."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    score: Annotated[float, Field(ge=-1, le=1)] | None
    reason: str

    def to_verdict(self) -> Verdict:
        return Verdict(self.score, self.reason)


def judge_request(kind: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    sent = {name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value for name, value in inputs.items()}
    return {"kind": kind, "inputs": sent}
