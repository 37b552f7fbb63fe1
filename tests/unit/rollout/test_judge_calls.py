"""What an episode's judge was asked, and what that cost, is noted on the episode."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from scripted import TWO_HOPS

from rolecast.ports import JudgeInfo, Verdict
from rolecast.rollout.clock import Clock
from rolecast.rollout.collect import play_episode
from rolecast.rollout.limits import Limits
from rolecast.rollout.waits import Waits
from rolecast.types import Reward, Trajectory
from rolecast.wire.coordinator import pack, unpack


class Costly:
    async def info(self) -> JudgeInfo:
        return JudgeInfo("costly")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        return Verdict(0.5, "scripted", inputs["cost"])


class Asking:
    """A method that asks its judge as often as it has costs."""

    probed: frozenset[str] = frozenset()

    def __init__(self, costs: Sequence[int]) -> None:
        self.costs = costs

    async def rollout(self, question: Any, env: Any) -> str:
        return "an answer"

    async def score(self, trajectory: Trajectory, judge: Any, embed: Any) -> list[Reward]:
        assert await judge.info() == JudgeInfo("costly")
        verdicts = [await judge.judge("answer", {"cost": cost}) for cost in self.costs]
        return [Reward("judge", trajectory.id, verdict.score) for verdict in verdicts]


def test_calls_and_tokens_travel_with_the_episode() -> None:
    t = Trajectory("t", TWO_HOPS, "g", 0, "decor", 0)
    env: Any = SimpleNamespace(trajectory=t, phase="eval", embed=None, waits=Waits(), limits=Limits(), clock=Clock())
    asyncio.run(play_episode(Asking((10, 0, 7)), env, Costly()))  # type: ignore[arg-type]
    assert ([reward.value for reward in t.rewards], t.judge_calls, t.judge_tokens) == ([0.5] * 3, 3, 17)
    [back] = unpack(pack([t]))
    assert (back.judge_calls, back.judge_tokens) == (3, 17)
