"""The embedded judge for world rows: it reads gold chains and compares words. No model, no network.

Kinds: `answer` gives 0 or 1; role kinds give ±1, or no verdict. Each rule is one small function with its reason, in its method's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolecast.judge.evidence import OnChain
from rolecast.judge.kinds import ANSWER, AnswerInputs, Rule
from rolecast.methods.registry import judge_kind, verdict_rule
from rolecast.ports import JudgeInfo, Verdict
from rolecast.rewards.text import exact_match
from rolecast.types import Gold

LEXICAL = JudgeInfo("lexical")


class LexicalJudge:
    """`Judge` over gold chains; rows without a chain are unscored by the role kinds."""

    async def info(self) -> JudgeInfo:
        return LEXICAL

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        asked, rule = judge_kind(kind), rule_of(kind)
        if asked is None or rule is None:
            return Verdict(None, f"the lexical judge has no rule for {kind!r}")
        return rule(asked.read(inputs))

    def scores(self, kind: str, gold: Gold) -> bool:
        """Whether a question with this gold can get a verdict of this kind at all."""
        rule = rule_of(kind)
        return rule is not None and bool(gold.chain or not isinstance(rule, OnChain))


def rule_of(kind: str) -> Rule | None:
    return _SHARED.get(kind) or verdict_rule(kind)


def _answer(inputs: AnswerInputs) -> Verdict:
    right = exact_match(inputs.prediction, inputs.gold.answers)
    return Verdict(right, "matches a gold answer" if right else "matches no gold answer")


_SHARED: Mapping[str, Rule] = {ANSWER.name: _answer}
