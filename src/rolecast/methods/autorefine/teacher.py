"""`autorefine`'s teacher."""

from __future__ import annotations

import random

from rolecast.methods.transcript import TranscriptState, TranscriptTeacher
from rolecast.tags import tagged
from rolecast.teachers.base import kept_facts
from rolecast.types import Observation, Passage, Trajectory


class AutoRefineTeacher(TranscriptTeacher):
    """Refines to the sentences that answer its last query."""

    def reply(self, role: str, state: TranscriptState, episode: Trajectory, rng: random.Random) -> str:
        refined = self._refined(role, state, episode, rng)
        step = self.step(role, state, episode, rng)
        if step.query is None:
            return refined + tagged("think", step.reasons) + tagged("answer", step.answer)
        return refined + tagged("think", self.thoughts.seek(step.query)) + tagged("search", step.query)

    def _refined(self, role: str, state: TranscriptState, episode: Trajectory, rng: random.Random) -> str:
        if not state.queries:
            return ""
        last = episode.threads_of(role)[0].turns[-1]
        assert isinstance(last, Observation)
        return tagged("refine", " ".join(kept_facts([Passage("", "", last.text)], state.queries[-1], self.errors, rng)) or "nothing")
