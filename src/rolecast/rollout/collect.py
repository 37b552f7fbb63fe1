"""Episodes of a method on questions: rollout, probe, score. The same code samples for training and for evaluation."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rolecast.errors import EngineError, InputError, NamedStop, RolecastError
from rolecast.leasing import Group
from rolecast.methods.base import Method
from rolecast.ports import Engine, Judge, JudgeInfo, Retriever, Sampling, Verdict
from rolecast.rollout.clock import ANSWER, Clock
from rolecast.rollout.env import PREPARE, Env, EpisodeEnd, Phase
from rolecast.rollout.limits import Limits, within
from rolecast.rollout.render import Renderer
from rolecast.rollout.scheduler import Lanes, Left
from rolecast.rollout.waits import Waits
from rolecast.types import Question, Reward, Trajectory

log = logging.getLogger(__name__)
T = TypeVar("T")
Tell = Callable[[], None]
Asks = Callable[[Trajectory, Judge], Awaitable[list[Reward]]]


@dataclass(frozen=True, slots=True)
class Episode:
    """Which episode to play: `group` names the question's group in this step, `member` the rollout in it."""

    question: Question
    group: str
    member: int


@dataclass(slots=True)
class Collector:
    """At most `in_flight` episodes are live at once, whatever group they are of. One that is judged is not live any more, but in lockstep.

    An episode in which something fails or hangs (a tool, the judge, a probe) has status "error" and costs nobody else anything; an engine
    that fails ends everything with an `EngineError`, and so does a `NamedStop`, such as a judge's whose budget is spent.
    """

    method: Method
    engine: Engine
    retriever: Retriever
    judge: Judge
    renderer: Renderer
    seed: int
    max_context: int
    in_flight: int
    forgets: bool = False  # as `Env` has it
    waits: Waits = field(default_factory=Waits)  # of all episodes
    limits: Limits = field(default_factory=Limits)
    lockstep: bool = True
    clocks: dict[str, Clock] | None = None  # of episodes that have ended, by their ids, for whoever wants them
    asks: Asks | None = None  # what the judge is asked beside what the method asks
    # One loop for all calls: clients of remote services keep their connections in it, and an engine may live there too.
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    _lanes: Lanes | None = None
    _begun: dict[str, list[Trajectory]] = field(default_factory=dict)  # by group, of those that are played one by one

    def collect(
        self, episodes: Sequence[Episode], sampling: Sampling, phase: Phase, progress: Callable[[int], None] = lambda done: None
    ) -> list[Trajectory]:
        """Finished, scored trajectories in the order of `episodes`."""
        done = 0

        def ended() -> None:
            nonlocal done
            done += 1
            progress(done)

        return self.run(self._play(episodes, sampling, phase, ended, self.engine.version))

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs `main`, in which groups are played, in the collector's loop and with its engine going."""
        # Python's garbage collection looks at what is made from now on alone: with torch and vLLM in it, a look at the whole process takes a tenth
        # of a second and more, in which no episode goes on.
        gc.freeze()
        try:
            return self.runner.run(self._driven(main))
        except SystemExit:
            self._wind_up()
            raise
        finally:
            gc.unfreeze()

    def _wind_up(self) -> None:
        """Ends what is live after a signal that met a task. The loop lets a `SystemExit` through at once, and again from each task that waits
        for that one: left to `close`, it would keep the engine from being closed, and asyncio would print it as a traceback."""
        loop = self.runner.get_loop()
        while live := asyncio.all_tasks(loop):
            for task in live:
                task.cancel()
            with suppress(SystemExit):
                loop.run_until_complete(asyncio.wait(live))
            for task in live:
                if task.done() and not task.cancelled():
                    task.exception()  # read, so that nobody is told of it once more

    def close(self) -> None:
        """Ends what its clients left running in its loop. For after the last call, from outside of it."""
        self.runner.close()

    def play_group(self, group: Group, ended: Tell = lambda: None) -> Coroutine[Any, Any, list[Trajectory]]:
        """A group's trajectories, finished and scored, in the order of its members. Only inside `run`; `ended` after each of them.

        They are sampled by the version that answers now, wherever the engine keeps it beside newer ones.
        """
        episodes = [Episode(group.question, group.id, member) for member in group.members]
        self._begun[group.id] = []
        return self._kept(group, episodes, ended, self.engine.version)

    async def _kept(self, group: Group, episodes: Sequence[Episode], ended: Tell, version: str) -> list[Trajectory]:
        done = await self._play(episodes, group.sampling, group.phase, ended, version)
        self._begun.pop(group.id, None)
        return done

    def begun(self, group: Group) -> list[Trajectory]:
        """What there is of a group whose playing was cancelled, as far as it went; told once."""
        return sorted(self._begun.pop(group.id, ()), key=lambda t: group.members.index(t.member))

    async def _driven(self, main: Coroutine[Any, Any, T]) -> T:
        self._lanes = Lanes(self.engine, self.in_flight)
        self._begun.clear()
        async with self.engine:
            return await main

    async def _play(self, episodes: Sequence[Episode], sampling: Sampling, phase: Phase, ended: Tell, version: str) -> list[Trajectory]:
        assert self._lanes is not None, "play inside run"
        members: dict[str, list[int]] = {}
        for episode in episodes:
            members.setdefault(episode.group, []).append(episode.member)
        most = turns_of(self.method)
        left = {group: Left(of, most) for group, of in members.items()}
        return await self._lanes.all([self._job(one, sampling, phase, ended, left[one.group], version) for one in episodes])

    def _job(
        self, episode: Episode, sampling: Sampling, phase: Phase, ended: Tell, left: Left, version: str
    ) -> Callable[[], Awaitable[Trajectory]]:
        def spoken() -> None:
            left.ended(episode.member)
            if not self.lockstep and self._lanes is not None:
                self._lanes.leave()

        async def run() -> Trajectory:
            trajectory = Trajectory(
                f"{episode.group}.{episode.member}", episode.question, episode.group, episode.member, self.method.name, self.seed
            )
            env = Env(
                self.engine,
                self.retriever,
                self.renderer,
                trajectory,
                self.max_context,
                sampling,
                phase,
                forgets=self.forgets,
                waits=self.waits,
                limits=self.limits,
                left=left,
                version=version,
            )
            if self.clocks is not None:
                self.clocks[trajectory.id] = env.clock
            if episode.group in self._begun:
                self._begun[episode.group].append(trajectory)
            try:
                await play_episode(self.method, env, self.judge, spoken, self.asks)
            except (EngineError, NamedStop):  # no other episode would get further
                raise
            except Exception as error:
                _spoil(trajectory, error)
            left.ended(episode.member)
            ended()
            return trajectory

        return run


@dataclass(frozen=True, slots=True)
class CountedJudge:
    """A judge whose calls are noted on the episode that it is asked about."""

    asked: Judge
    trajectory: Trajectory
    waits: Waits
    limit: float | None = None  # seconds of a call

    async def info(self) -> JudgeInfo:
        return await self.asked.info()

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        with self.waits.on("judge"):
            called = f"{self.trajectory.id}: the judge gave no verdict of {kind}"
            verdict = await within(self.limit, self.asked.judge(kind, inputs), called, "judge.limit")
        self.trajectory.judge_calls += 1
        self.trajectory.judge_tokens += verdict.tokens
        return verdict


def turns_of(method: Method) -> int | None:
    """Turns of an episode, at most; None where the method does not say."""
    most = method.most
    return None if most is None else sum(spoken.contexts * spoken.replies for spoken in most.said.values())


async def play_episode(method: Method, env: Env, judge: Judge | None, spoken: Tell = lambda: None, asks: Asks | None = None) -> Trajectory:
    """One episode from question to rewards. Without a judge (serving) nothing is scored. What fails in it is raised. `spoken` is told when no
    role will speak any more. `asks`: further rewards."""
    trajectory = env.trajectory
    try:
        with env.clock.on(ANSWER):
            trajectory.answer = await method.rollout(trajectory.question, env)
    except EpisodeEnd as end:
        trajectory.status = end.status
    if env.phase in method.probed:
        await method.probe(trajectory, env.probe())
    spoken()
    if judge is not None:
        counted = CountedJudge(judge, trajectory, env.waits, env.limits.judge)
        trajectory.rewards = list(await method.score(trajectory, counted, env.embed))
        trajectory.rewards += await asks(trajectory, counted) if asks is not None else []
    if env.phase == PREPARE:
        trajectory.prepared = _prepared(method, trajectory)
    return trajectory


def _prepared(method: Method, trajectory: Trajectory) -> dict[str, Any] | None:
    """As it comes back from a file or a wire, here too: a later stage's episodes do not depend on who played these."""
    kept = method.prepare(trajectory)
    if kept is None:
        return None
    try:
        given: dict[str, Any] = json.loads(json.dumps(dict(kept), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"method {method.name} prepares what is no JSON ({error}); keep texts, numbers, lists and mappings") from None
    return given


def _spoil(trajectory: Trajectory, error: Exception) -> None:
    """What failed is told with the episode. An answer that was given before stays: it is right or wrong all the same."""
    trajectory.status, trajectory.rewards = "error", []
    trajectory.fault = f"{type(error).__name__}: {error}"
    # A named fault says what to do; of anything else the place in the code must be known.
    log.warning("episode %s failed: %s", trajectory.id, trajectory.fault, exc_info=None if isinstance(error, RolecastError) else error)
