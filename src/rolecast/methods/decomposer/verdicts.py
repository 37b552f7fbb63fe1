"""The lexical judge's rule for DecomposeR's rubric, on world rows: whether the report says a fact, and cites who says so."""

from __future__ import annotations

from collections.abc import Mapping

from rolecast.judge.evidence import OnChain, says
from rolecast.judge.kinds import Rule
from rolecast.methods.decomposer.form import cited_sentences
from rolecast.methods.decomposer.judge import RUBRIC, RubricInputs
from rolecast.methods.decomposer.rewards import share_said
from rolecast.ports import Verdict


def _rubric(inputs: RubricInputs) -> Verdict:
    """1: a sentence says it and cites a passage that does; .75: says it; .5 or .25: at least half or a quarter of its words in one sentence."""
    said = cited_sentences(inputs.report)
    stating = [numbers for sentence, numbers in said if says(sentence, inputs.item)]
    if any(says(inputs.sources.get(str(number), ""), inputs.item) for numbers in stating for number in numbers):
        return Verdict(1.0, "says it and cites a passage that does")
    if stating:
        return Verdict(0.75, "says it without a passage that does")
    share = max((share_said(inputs.item, sentence) for sentence, _ in said), default=0.0)
    level = 0.5 if share >= 0.5 else 0.25 if share >= 0.25 else 0.0
    return Verdict(level, f"its best sentence has {share:.0%} of the words")


RULES: Mapping[str, Rule] = {RUBRIC.name: OnChain(_rubric)}
