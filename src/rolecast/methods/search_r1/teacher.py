"""Search-R1's teacher: it reads what the transcript's observations said."""

from __future__ import annotations

import random

from rolecast.methods.search_r1.state import SearchR1State
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer, next_query, reasoning
from rolecast.types import Observation, Trajectory


class SearchR1Teacher:
    """Searches at most `max_turns` times, then answers with what it has."""

    def __init__(self, errors: TeacherErrors, max_turns: int) -> None:
        self._errors = errors
        self._max_turns = max_turns

    def reply(self, role: str, state: SearchR1State, episode: Trajectory, rng: random.Random) -> str:
        thread = episode.threads[-1]
        known = " ".join(turn.text for turn in thread.turns[1:] if isinstance(turn, Observation))
        asked = [action.text.split("<search>")[1].split("</search>")[0].strip() for action in thread.actions]
        query = None
        if len(asked) < self._max_turns:
            query = next_query(episode.question, known, asked, self._errors, rng)
        if query is None:
            thought, answer = reasoning(episode.question, known, asked), best_answer(episode.question, known, asked)
            return tagged("think", thought) + tagged("answer", answer)
        return tagged("think", "next fact") + tagged("search", query)
