"""What a DECOR episode knows at a decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecast.types import Passage

STOP = "None"  # the planner's word for: nothing is missing


@dataclass(slots=True)
class Entry:
    """One item of memory: what was asked, and what the filter kept."""

    query: str
    evidence: str
    condensed: bool = False


@dataclass(slots=True)
class DecorState:
    question: str
    queries: list[str] = field(default_factory=list)
    memory: list[Entry] = field(default_factory=list)
    sub_query: str = ""
    documents: list[Passage] = field(default_factory=list)
    entry: Entry | None = None
