"""Episodes of a method on questions: rollout, probe, score. The same code samples for training and for evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from rolecast.methods.base import Method
from rolecast.ports import Engine, Judge, Retriever, Sampling
from rolecast.rollout.env import Env, EpisodeEnd, Phase
from rolecast.rollout.render import Renderer
from rolecast.rollout.scheduler import play
from rolecast.types import Question, Trajectory


@dataclass(frozen=True, slots=True)
class Episode:
    """Which episode to play: `group` names the question's group in this step, `member` the rollout in it."""

    question: Question
    group: str
    member: int


@dataclass(slots=True)
class Collector:
    method: Method
    engine: Engine
    retriever: Retriever
    judge: Judge
    renderer: Renderer
    seed: int
    max_context: int
    in_flight: int
    # One loop for all calls: clients of remote services keep their connections in it.
    _loop: asyncio.Runner = field(default_factory=asyncio.Runner)

    def collect(
        self, episodes: Sequence[Episode], sampling: Sampling, phase: Phase, progress: Callable[[int], None] = lambda done: None
    ) -> list[Trajectory]:
        """Finished, scored trajectories in the order of `episodes`."""
        jobs = [self._job(episode, sampling, phase) for episode in episodes]
        return self._loop.run(play(jobs, self.engine, self.in_flight, progress))

    def _job(self, episode: Episode, sampling: Sampling, phase: Phase) -> Callable[[], Awaitable[Trajectory]]:
        async def run() -> Trajectory:
            trajectory = Trajectory(
                f"{episode.group}.{episode.member}", episode.question, episode.group, episode.member, self.method.name, self.seed
            )
            env = Env(self.engine, self.retriever, self.renderer, trajectory, sampling, self.max_context, phase)
            return await play_episode(self.method, env, self.judge)

        return run


async def play_episode(method: Method, env: Env, judge: Judge | None) -> Trajectory:
    """One episode from question to rewards. Without a judge (serving) nothing is scored."""
    trajectory = env.trajectory
    try:
        trajectory.answer = await method.rollout(trajectory.question, env)
    except EpisodeEnd as end:
        trajectory.status = end.status
    if env.phase == "train":
        env.probing = True
        await method.probe(trajectory, env)
        env.probing = False
    if judge is not None:
        trajectory.rewards = await method.score(trajectory, judge)
    return trajectory
