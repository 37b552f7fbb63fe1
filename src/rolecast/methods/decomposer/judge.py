"""What the judge is asked of a final report: one item of the rubric at a time, on five levels."""

from __future__ import annotations

from importlib.resources import files

from rolecast.judge.kinds import JudgeInputs, JudgeKind, read_level


class RubricInputs(JudgeInputs):
    item: str
    report: str
    sources: dict[str, str]  # texts of the passages that the report cites, by number


RUBRIC = JudgeKind("decomposer.rubric", files(__package__) / "judge_prompts" / "rubric.jinja", RubricInputs, read_level)
KINDS = (RUBRIC,)
