"""DECOR's teacher."""

from __future__ import annotations

import random

from rolecast.methods.decor.state import STOP, DecorState
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer, next_query, reasoning
from rolecast.types import Trajectory
from rolecast.world.grammar import Fact, facts_in, forward_query, inverse_query, rephrased, sentences


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
        return tagged("think", reasoning(question, known, state.queries)) + tagged("answer", best_answer(question, known, state.queries))

    def _keep(self, state: DecorState, rng: random.Random) -> list[str]:
        said = [sentence for document in state.documents for sentence in sentences(document.text)]
        asked = [sentence for sentence in said if any(state.sub_query in _phrasings(fact) for fact in facts_in(sentence))]
        others = [sentence for sentence in said if sentence not in asked]
        if rng.random() < self._errors.keep_distractors:
            asked += rng.sample(others, min(2, len(others)))
        return [sentence for sentence in said if sentence in asked]


def _phrasings(fact: Fact) -> set[str]:
    forward, inverse = forward_query(fact.relation, fact.subject), inverse_query(fact.relation, fact.object)
    return {forward, inverse, rephrased(forward), rephrased(inverse)}
