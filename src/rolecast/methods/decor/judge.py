"""What DECOR's roles are judged on: each ±1, the answerer's also without a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from rolecast.judge.kinds import JudgeInputs, JudgeKind, read_sign

_PROMPTS = files(__package__) / "judge_prompts"


class PlannerInputs(JudgeInputs):
    content: str  # a query, or the word that stops
    queries: list[str]
    memory: str


class FilterInputs(JudgeInputs):
    content: str  # what was kept
    sub_query: str
    documents: list[str]


class AnswererInputs(JudgeInputs):
    content: str  # the answer
    memory: str
    queries: Sequence[str] = ()  # asked before: what no passage states is resolved by asking


KINDS = (
    JudgeKind("decor.planner", _PROMPTS / "planner.jinja", PlannerInputs, read_sign),
    JudgeKind("decor.filter", _PROMPTS / "filter.jinja", FilterInputs, read_sign),
    JudgeKind("decor.answerer", _PROMPTS / "answerer.jinja", AnswererInputs, read_sign),
)
