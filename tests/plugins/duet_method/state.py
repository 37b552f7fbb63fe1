"""What an episode knows at a decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecast.types import Passage


@dataclass(slots=True)
class DuetState:
    question: str
    found: dict[str, list[Passage]] = field(default_factory=dict)  # by the branch of the scout that searched for them

    @property
    def documents(self) -> list[str]:
        return [passage.text for passages in self.found.values() for passage in passages]
