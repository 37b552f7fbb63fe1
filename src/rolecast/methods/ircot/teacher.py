"""`ircot`'s teacher."""

from __future__ import annotations

import random

from rolecast.methods.ircot.state import IrcotState
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer, next_query, reasoning
from rolecast.teachers.thoughts import SHORTHAND, Thoughts
from rolecast.types import Trajectory


class IrcotTeacher:
    """Its sentences say what is asked for next, so that a search with one finds it."""

    def __init__(self, errors: TeacherErrors, thoughts: Thoughts = SHORTHAND) -> None:
        self._errors, self._thoughts = errors, thoughts

    def reply(self, role: str, state: IrcotState, episode: Trajectory, rng: random.Random) -> str:
        question = episode.question
        known = " ".join(document.text for document in state.documents)
        asked = [sentence.removeprefix("Now ").removesuffix(".") for sentence in state.reasoning]
        answer = best_answer(question, known, asked)
        if role == "answerer":
            return tagged("think", self._thoughts.conclude(reasoning(question, known, asked))) + tagged("answer", answer)
        query = next_query(question, known, asked, self._errors, rng)
        return tagged("think", f"So the answer is {answer}." if query is None else f"Now {query}.")
