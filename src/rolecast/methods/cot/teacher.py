"""`cot`'s teacher."""

from __future__ import annotations

import random

from rolecast.methods.one_answer import AnswerState
from rolecast.tags import tagged
from rolecast.teachers.base import reasoning
from rolecast.types import Trajectory


class CotTeacher:
    """Knows the gold chain: what a model can learn from it without searching, it knows."""

    def reply(self, role: str, state: AnswerState, episode: Trajectory, rng: random.Random) -> str:
        question = episode.question
        facts = " ".join(hop.fact for hop in question.gold.chain)
        return tagged("think", reasoning(question, facts)) + tagged("answer", question.gold.answers[0])
