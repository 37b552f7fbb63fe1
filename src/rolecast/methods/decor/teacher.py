"""DECOR's teacher."""

from __future__ import annotations

import random

from rolecast.methods.decor.condense import condense
from rolecast.methods.decor.state import STOP, DecorState
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer, kept_facts, next_query, reasoning
from rolecast.types import Trajectory


class DecorTeacher:
    def __init__(self, errors: TeacherErrors) -> None:
        self._errors = errors

    def reply(self, role: str, state: DecorState, episode: Trajectory, rng: random.Random) -> str:
        question = episode.question
        known = " ".join(entry.evidence for entry in state.memory)
        if role == "planner":
            query = next_query(question, known, state.queries, self._errors, rng)
            if query is None:
                return tagged("think", "nothing missing") + tagged("search", STOP)
            return tagged("think", "next fact") + tagged("search", query)
        if role == "filter":
            kept = kept_facts(state.documents, state.sub_query, self._errors, rng)
            return tagged("think", "keep" if kept else "nothing") + tagged("filter", " ".join(kept))
        if role == "condenser":
            assert state.entry is not None
            return tagged("facts", condense(state.entry.evidence))
        return tagged("think", reasoning(question, known, state.queries)) + tagged("answer", best_answer(question, known, state.queries))
