"""What one thread of a CoDA episode knows at a decision. Every thread has a state of its own, so nothing passes between contexts."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecast.types import Passage


@dataclass(frozen=True, slots=True)
class Pair:
    """What was delegated, and what came back: empty where the executor never answered."""

    task: str
    result: str


@dataclass(slots=True)
class CodaState:
    """`question` is the planner's (and the monolith's) alone, `task` an executor's alone."""

    question: str = ""
    task: str = ""
    pairs: list[Pair] = field(default_factory=list)  # what this thread delegated
    queries: list[str] = field(default_factory=list)  # what this thread searched for
    documents: list[Passage] = field(default_factory=list)  # of the last search
    notes: list[str] = field(default_factory=list)  # what this thread refined
