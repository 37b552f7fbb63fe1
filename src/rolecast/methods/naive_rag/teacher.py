"""`naive_rag`'s teacher."""

from __future__ import annotations

import random

from rolecast.methods.one_answer import AnswerState
from rolecast.tags import tagged
from rolecast.teachers.base import best_answer
from rolecast.types import Trajectory


class NaiveRagTeacher:
    """Answers with what the documents support, so that its answers can be learned by reading."""

    def reply(self, role: str, state: AnswerState, episode: Trajectory, rng: random.Random) -> str:
        known = " ".join(document.text for document in state.documents)
        return tagged("answer", best_answer(episode.question, known, [state.question]))
