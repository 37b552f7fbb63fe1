"""What a judge is asked where it decides on sufficiency."""

from __future__ import annotations

from importlib.resources import files

from rolecast.judge.kinds import JudgeInputs, JudgeKind, read_share


class SufficientInputs(JudgeInputs):
    documents: list[str]


SUFFICIENT = JudgeKind("dac.sufficient", files(__package__) / "judge_prompts" / "sufficient.jinja", SufficientInputs, read_share)
