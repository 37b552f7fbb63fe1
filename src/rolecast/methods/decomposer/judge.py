"""What the judge is asked of a final report: one item of the rubric at a time, on five levels."""

from __future__ import annotations

from importlib.resources import files

from rolecast.judge.kinds import JudgeInputs, JudgeKind, read_share
from rolecast.ports import Verdict

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


class RubricInputs(JudgeInputs):
    item: str
    report: str
    sources: dict[str, str]  # texts of the passages that the report cites, by number


def read_level(reply: str) -> Verdict:
    """A reply that ends with a line `Score: x`, x one of the five levels."""
    verdict = read_share(reply)
    if verdict.score is not None and verdict.score not in LEVELS:
        return Verdict(None, f"the judge model's score {verdict.score:g} is none of the five levels")
    return verdict


RUBRIC = JudgeKind("decomposer.rubric", files(__package__) / "judge_prompts" / "rubric.jinja", RubricInputs, read_level)
KINDS = (RUBRIC,)
