"""Search-R1's teacher."""

from __future__ import annotations

import random

from rolecast.methods.transcript import TranscriptState, TranscriptTeacher
from rolecast.tags import tagged
from rolecast.types import Trajectory


class SearchR1Teacher(TranscriptTeacher):
    def reply(self, role: str, state: TranscriptState, episode: Trajectory, rng: random.Random) -> str:
        step = self.step(role, state, episode, rng)
        if step.query is None:
            return tagged("think", step.reasons) + tagged("answer", step.answer)
        return tagged("think", self.thoughts.seek(step.query)) + tagged("search", step.query)
