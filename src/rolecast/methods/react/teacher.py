"""`react`'s teacher."""

from __future__ import annotations

import random

from rolecast.methods.transcript import TranscriptState, TranscriptTeacher
from rolecast.types import Trajectory


class ReactTeacher(TranscriptTeacher):
    def reply(self, role: str, state: TranscriptState, episode: Trajectory, rng: random.Random) -> str:
        step = self.step(role, state, episode, rng)
        if step.query is None:
            return f"Thought: {step.reasons}\nAction: Finish[ {step.answer}]\n"
        return f"Thought: {self.thoughts.seek(step.query)}\nAction: Search[ {step.query}]\n"
