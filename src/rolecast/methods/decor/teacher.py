"""DECOR's teacher."""

from __future__ import annotations

import random

from rolecast.methods.decor.state import STOP, DecorState
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer, next_query, reasoning
from rolecast.types import Trajectory
from rolecast.world.grammar import Fact, facts_in, forward_query, inverse_query, rephrased


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
            kept = self._keep(state, rng)
            return tagged("think", "keep" if kept else "nothing") + tagged("filter", " ".join(kept))
        return tagged("think", reasoning(question, known)) + tagged("answer", best_answer(question, known))

    def _keep(self, state: DecorState, rng: random.Random) -> list[str]:
        facts = [fact for document in state.documents for fact in facts_in(document.text)]
        asked = [fact for fact in facts if state.sub_query in _phrasings(fact)]
        others = [fact for fact in facts if fact not in asked]
        if rng.random() < self._errors.keep_distractors:
            asked += rng.sample(others, min(2, len(others)))
        return [fact.sentence for fact in facts if fact in asked]


def _phrasings(fact: Fact) -> set[str]:
    forward, inverse = forward_query(fact.relation, fact.subject), inverse_query(fact.relation, fact.object)
    return {forward, inverse, rephrased(forward), rephrased(inverse)}
