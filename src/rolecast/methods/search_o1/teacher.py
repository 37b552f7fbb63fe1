"""`search_o1`'s teacher."""

from __future__ import annotations

import random

from rolecast.methods.search_o1.state import NOTHING, SEARCH, SearchO1State
from rolecast.methods.transcript import TranscriptTeacher
from rolecast.tags import tagged
from rolecast.teachers.base import kept_facts
from rolecast.types import Trajectory


class SearchO1Teacher(TranscriptTeacher):
    """Its reader keeps the sentences that answer the query."""

    def reply(self, role: str, state: SearchO1State, episode: Trajectory, rng: random.Random) -> str:
        if role == "reader":
            kept = kept_facts(state.documents, state.query, self.errors, rng)
            return tagged("information", " ".join(kept) or NOTHING)
        step = self.step(role, state, episode, rng)
        if step.query is None:
            return f" {step.reasons}" + tagged("answer", step.answer)
        return f" {self.thoughts.seek(step.query)}{SEARCH[0]} {step.query}{SEARCH[1]}"
