"""The knowledge state that M-ASK's roles share (eq. 1), and what stands beside it at a decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecast.types import Passage

UNKNOWN = "unknown"  # the answer of a sub-question that planning cannot answer
NOTHING = "nothing"  # the evidence of documents that say nothing of the query


@dataclass(slots=True)
class Step:
    """One τ of the thinking trajectory: a sub-query and its sub-answer, from planning or from evidence."""

    query: str
    answer: str

    @property
    def open(self) -> bool:
        """Whether it still lacks an answer."""
        return self.answer in (UNKNOWN, NOTHING)


@dataclass(slots=True)
class Searched:
    """One item of the search history."""

    query: str
    summary: str


@dataclass(slots=True)
class MaskState:
    question: str
    trajectory: list[Step] = field(default_factory=list)
    predicted: str = UNKNOWN  # planning's answer a₀; with `update_sees: latest`, a_t
    history: list[Searched] = field(default_factory=list)
    query: str = ""  # of this turn
    documents: list[Passage] = field(default_factory=list)
    evidence: str = ""

    @property
    def turns(self) -> int:
        """Turns that are over: each searched once."""
        return len(self.history)
