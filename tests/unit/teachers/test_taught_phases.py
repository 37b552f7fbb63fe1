"""In which phases SFT's episodes are played."""

from __future__ import annotations

import pytest

from rolecast.methods.direct import Direct, DirectConfig
from rolecast.rollout.env import Env, Phase
from rolecast.rollout.render import Renderer
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Question


@pytest.mark.parametrize(("taught", "phases"), [(("train",), ["train"] * 4), (("train", "eval"), ["train", "eval"] * 2)])
def test_episodes_take_turns_by_their_numbers(renderer: Renderer, taught: tuple[Phase, ...], phases: list[Phase]) -> None:
    seen: list[Phase] = []

    class Noting(Direct):
        async def rollout(self, question: Question, env: Env) -> str | None:
            seen.append(env.phase)
            return await super().rollout(question, env)

    assert Noting.taught == ("train",)
    Noting.taught = taught
    method = Noting(DirectConfig(prompts="compact"))
    for number in range(4):
        throwaway_episode(method, method.teacher(TeacherErrors()), renderer, 0, number, 512)
    assert seen == phases
