"""Repeats the question."""

from __future__ import annotations

import random
from typing import Any

from rolecast.tags import tagged
from rolecast.types import Trajectory


class EchoTeacher:
    def reply(self, role: str, state: Any, episode: Trajectory, rng: random.Random) -> str:
        return tagged("answer", episode.question.text)
