"""What the untrained baselines share: nothing is learned from their rewards, which are the answer's scores.

They can be fine-tuned on a teacher of their own, as controls are.
"""

from __future__ import annotations

from rolecast.methods.base import Method, imitation
from rolecast.ports import Embed, Judge
from rolecast.rewards.text import exact_match, token_f1
from rolecast.types import Reward, Stage, Trajectory


class Untrained(Method):
    """All its roles speak with one model."""

    trained = False

    def schedule(self) -> tuple[Stage, ...]:
        return (Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",)),)

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        answer, golds = trajectory.answer, trajectory.question.gold.answers
        return [
            Reward("team.em", trajectory.id, exact_match(answer, golds), "text"),
            Reward("team.f1", trajectory.id, token_f1(answer, golds), "text"),
        ]
