"""Teachers of the untrained methods."""

from __future__ import annotations

import random

from rolecast.methods.baselines import AnswerState
from rolecast.methods.tags import tagged
from rolecast.teachers.base import best_answer
from rolecast.types import Trajectory


class DirectTeacher:
    """Gives the gold answer: what a model can learn from it without searching, it knows."""

    def reply(self, role: str, state: AnswerState, episode: Trajectory, rng: random.Random) -> str:
        return tagged("answer", episode.question.gold.answers[0])


class NaiveRagTeacher:
    """Answers with what the documents support, so that its answers can be learned by reading."""

    def reply(self, role: str, state: AnswerState, episode: Trajectory, rng: random.Random) -> str:
        known = " ".join(document.text for document in state.documents)
        return tagged("answer", best_answer(episode.question, known))
