"""`direct`'s teacher."""

from __future__ import annotations

import random

from rolecast.methods.one_answer import AnswerState
from rolecast.tags import tagged
from rolecast.types import Trajectory


class DirectTeacher:
    """Gives the gold answer: what a model can learn from it without searching, it knows."""

    def reply(self, role: str, state: AnswerState, episode: Trajectory, rng: random.Random) -> str:
        return tagged("answer", episode.question.gold.answers[0])
