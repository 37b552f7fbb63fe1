"""Searches for any fact of the chain, and answers from what was found."""

from __future__ import annotations

import random

from duet_method.state import DuetState
from rolecast.tags import tagged
from rolecast.teachers.base import best_answer
from rolecast.types import Trajectory


class DuetTeacher:
    def reply(self, role: str, state: DuetState, episode: Trajectory, rng: random.Random) -> str:
        if role == "scout":
            return tagged("search", rng.choice(episode.question.gold.chain).query)
        return tagged("answer", best_answer(episode.question, " ".join(state.documents)))
