"""What an IRCoT episode knows at a decision."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecast.methods.one_answer import AnswerState


@dataclass(slots=True)
class IrcotState(AnswerState):
    """`documents`: the paragraphs so far, each once, in the order in which they were found."""

    reasoning: list[str] = field(default_factory=list)
