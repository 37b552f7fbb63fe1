"""DECOR's teacher."""

from __future__ import annotations

import random

from rolecast.methods.decor.condense import condense
from rolecast.methods.decor.state import STOP, DecorState
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer, kept_facts, next_query, reasoning
from rolecast.teachers.thoughts import SHORTHAND, Thoughts
from rolecast.types import Trajectory


class DecorTeacher:
    def __init__(self, errors: TeacherErrors, thoughts: Thoughts = SHORTHAND) -> None:
        self._errors, self._thoughts = errors, thoughts

    def reply(self, role: str, state: DecorState, episode: Trajectory, rng: random.Random) -> str:
        question = episode.question
        known = " ".join(entry.evidence for entry in state.memory)
        if role == "planner":
            query = next_query(question, known, state.queries, self._errors, rng)
            if query is None:
                return tagged("think", self._thoughts.done()) + tagged("search", STOP)
            return tagged("think", self._thoughts.seek(query)) + tagged("search", query)
        if role == "filter":
            kept = kept_facts(state.documents, state.sub_query, self._errors, rng)
            return tagged("think", self._thoughts.keep(bool(kept))) + tagged("filter", " ".join(kept))
        if role == "condenser":
            assert state.entry is not None
            return tagged("facts", condense(state.entry.evidence))
        thought = self._thoughts.conclude(reasoning(question, known, state.queries))
        return tagged("think", thought) + tagged("answer", best_answer(question, known, state.queries))
