"""What a DAC episode knows at a decision, the words that it is played with, and what its threads are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rolecast.types import Passage

UNKNOWN = "unknown"  # the generator's word for: these documents do not answer the question
STOP = "<stop>"  # the searcher's: nothing more is needed

# What a probe of the generator is for: the beginning of its thread's key.
SAMPLE = "sample"  # one more answer to the episode's evidence
NOISY = "noisy"  # an answer to augmented evidence
PREFIX = "prefix"  # an answer to the evidence up to a turn
ABSTAINING, FORCED = "abstaining", "forced"  # in evaluation, one with the prompt that the episode did not use


@dataclass(slots=True)
class DacState:
    """`found`: what each turn of the searcher brought, nothing where it stopped or broke its form. The rest is how a prompt reads:
    `think` names the tag of thoughts, `abstains` says whether the generator may say that it does not know.
    """

    question: str
    found: list[list[Passage]] = field(default_factory=list)
    documents: list[Passage] = field(default_factory=list)
    think: str = "think"
    abstains: bool = False


def evidence(found: Sequence[Sequence[Passage]]) -> list[Passage]:
    """All that was found, each passage once, in the order of first finding."""
    return list({passage.id: passage for passages in found for passage in passages}.values())


def about(key: str) -> str:
    """What the thread with this key is for: one of the words above, "" for the episode's own."""
    kind = key.partition("=")[0]
    return kind if kind in (SAMPLE, NOISY, PREFIX, ABSTAINING, FORCED) else ""
