"""Several models as one judge: what most of them say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Protocol

from rolecast.errors import InputError
from rolecast.methods.registry import judge_kind
from rolecast.ports import Judge, JudgeInfo, Verdict


class Member(Judge, Protocol):
    async def close(self) -> None: ...


class EnsembleJudge:
    """The middle one of the scores that its members give: of ±1 the majority's, of levels a level. More than half of them must score.

    Where the two middle ones of an even number differ, shares of YES are averaged; of anything else there is no verdict. All members are
    asked at once, so a verdict takes as long as the slowest and costs what all of them cost.
    """

    def __init__(self, members: Mapping[str, Member]) -> None:
        if len(members) < 2:
            raise InputError("an ensemble is of two models or more, with different names; mend ROLECAST_JUDGE_OPENAI_MODEL")
        self.members = members

    async def info(self) -> JudgeInfo:
        first, *_ = [await member.info() for member in self.members.values()]
        return JudgeInfo("+".join(self.members), first.prompts)

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        asked = judge_kind(kind)
        found = await asyncio.gather(*(member.judge(kind, inputs) for member in self.members.values()), return_exceptions=True)
        for fault in found:
            if isinstance(fault, BaseException):
                raise fault
        verdicts = dict(zip(self.members, [one for one in found if isinstance(one, Verdict)], strict=True))
        return agreed(verdicts, averaged=asked is not None and asked.yes_no)

    async def close(self) -> None:
        for member in self.members.values():
            await member.close()


def agreed(verdicts: Mapping[str, Verdict], averaged: bool) -> Verdict:
    """`averaged`: scores may be between two that were given."""
    tokens = sum(verdict.tokens for verdict in verdicts.values())
    scored = sorted((v for v in verdicts.values() if v.score is not None), key=lambda v: v.score or 0.0)
    said = "; ".join(f"{name}: {'unscored' if v.score is None else f'{v.score:g}'} {v.reason}".rstrip() for name, v in verdicts.items())
    if 2 * len(scored) <= len(verdicts):
        return Verdict(None, f"{len(scored)} of {len(verdicts)} judges gave a score; {said}", tokens)
    middle = _middle(scored)
    scores = {verdict.score for verdict in middle if verdict.score is not None}
    if len(scores) > 1 and not averaged:
        return Verdict(None, f"the judges do not agree; {said}", tokens)
    return Verdict(fmean(scores), said, tokens, middle[0].items, middle[0].levels)


def _middle(scored: Sequence[Verdict]) -> Sequence[Verdict]:
    half = len(scored) // 2
    return scored[half : half + 1] if len(scored) % 2 else scored[half - 1 : half + 1]
