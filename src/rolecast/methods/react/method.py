"""`react`: thought, action, observation, in turns (Yao et al. 2023). An action is `Search[query]` or `Finish[answer]`."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from rolecast.methods.react.teacher import ReactTeacher
from rolecast.methods.registry import register
from rolecast.methods.transcript import Move, PassagesConfig, PassageTranscript
from rolecast.methods.untrained import Untrained
from rolecast.rollout.env import LiveThread
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Role

# The argument ends at its own bracket; whatever comes after the action is no part of it, an end token for instance.
STEP = re.compile(
    r"\s*Thought: (?P<thought>.*?)\s*\nAction: (?P<kind>Search|Finish)\[(?P<argument>(?:[^\[\]\n]|\[[^\[\]\n]*\])*)\]", re.DOTALL
)


class ReactConfig(PassagesConfig):
    name: Literal["react"] = "react"  # which method
    max_turns: int = Field(7, ge=1)  # searches, before one last turn without


@register
class React(Untrained, PassageTranscript):
    name = "react"
    config_type = ReactConfig
    words = ("Thought", "Action", "Observation", "Search", "Finish")
    speaker = "actor"
    again = (
        "Observation: Invalid action. Write a line that begins with Thought: and then Action: Search[query] or Action: Finish[answer].\n"
    )
    frame = ("Observation:", "\n")
    config: ReactConfig

    def __init__(self, config: ReactConfig) -> None:
        super().__init__(config)
        self.roles = {"actor": Role("actor", frozenset({"question"}), ("]\n",), config.max_tokens)}

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return ReactTeacher(errors, self.config.max_turns, self.thoughts)

    def read(self, text: str, thread: LiveThread) -> Move | None:
        step = STEP.match(text)
        if step is None or not step["argument"].strip():
            return None
        return {"search" if step["kind"] == "Search" else "answer": step["argument"].strip()}
