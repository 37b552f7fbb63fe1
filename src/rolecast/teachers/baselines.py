"""Teachers of the untrained methods: `direct` and `naive_rag` answer with the gold answer, whatever they were shown."""

from __future__ import annotations

import random

from rolecast.methods.baselines import AnswerState
from rolecast.methods.tags import tagged
from rolecast.types import Trajectory


class AnswerTeacher:
    def reply(self, role: str, state: AnswerState, episode: Trajectory, rng: random.Random) -> str:
        return tagged("answer", episode.question.gold.answers[0])
