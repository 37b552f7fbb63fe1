"""The team as a service: one engine in this process, episodes of many callers batched together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Protocol

from rolecast.agent.ids import new_id
from rolecast.agent.rewriter import rewrite
from rolecast.agent.watch import Watch
from rolecast.errors import RolecastError
from rolecast.methods.base import Method
from rolecast.ports import Engine, Retriever, Sampling
from rolecast.rollout.collect import play_episode
from rolecast.rollout.env import Env, EpisodeEnd
from rolecast.rollout.limits import Limits
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Message, Question, Role, Trajectory

NAME = "ask"  # of every episode while it is played: draws are named by it, so that a seed and a question give one answer


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks. `turns`: a conversation, of which the team's rewriter first makes the question.

    `sampling`: how all roles are sampled, by default as the team is. `seed`: by default another one each time. `watch`: what sees it happen.
    """

    text: str
    turns: tuple[Message, ...] = ()
    sampling: Sampling | None = None
    seed: int | None = None
    watch: Watch | None = None

    @property
    def characters(self) -> int:
        """How many the team would have to read."""
        return sum(len(turn["content"]) for turn in self.turns) or len(self.text)


class ServingEngine(Engine, Protocol):
    """An engine that tells that it failed: at once in `failure`, and to whoever waits for `failed`."""

    @property
    def failure(self) -> Exception | None: ...

    async def failed(self) -> Exception: ...


@dataclass(slots=True)
class Agent:
    """`start` before the first `ask`; the same coroutine as in training runs, without gold and without judge.

    The engine's steps block the event loop that this runs in: a service gives it a thread of its own.
    """

    name: str
    method: Method
    engine: ServingEngine
    retriever: Retriever
    renderer: Renderer
    max_context: int
    sampling: Sampling = field(default_factory=lambda: Sampling(0.0))
    rewriter: Role | None = None
    limits: Limits = field(default_factory=Limits)
    _running: bool = False

    async def start(self) -> None:
        await self.engine.__aenter__()
        self._running = True

    async def stop(self) -> None:
        if self._running:
            self._running = False
            await self.engine.__aexit__(None, None, None)

    async def failed(self) -> Exception:
        """Waits until the engine fails; gives its error. After that no question can be answered."""
        return await self.engine.failed()

    async def ask(self, asked: Asked) -> Trajectory:
        """Plays one episode. Its answer is None when the team broke its protocol or ran out of context.

        `RolecastError` if what the episode needs is away: the retriever, or the engine.
        """
        if not self._running or self.engine.failure:
            raise RolecastError("the engine is not running")
        try:
            return await self._play(asked)
        except Exception as error:
            if self.engine.failure:
                raise RolecastError("the engine failed while the team was answering") from error
            raise

    def first_tokens(self, text: str, count: int) -> str:
        """`text` without what comes after its first `count` tokens. Half a character at the end is left out."""
        ids = self.renderer.encode(text)
        return text if len(ids) <= count else self.renderer.decode(ids[:count]).rstrip("\ufffd")

    async def _play(self, asked: Asked) -> Trajectory:
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        trajectory = Trajectory(NAME, Question(NAME, asked.text, Gold(())), NAME, 0, self.method.name, seed)
        sampling = asked.sampling or self.sampling
        env = Env(
            self.engine,
            self.retriever,
            self.renderer,
            trajectory,
            self.max_context,
            sampling,
            "serve",
            watcher=asked.watch,
            limits=self.limits,
        )
        self.engine.branches += 1
        try:
            if asked.turns:
                assert self.rewriter is not None, "a conversation needs a rewriter"
                question = await rewrite(env, self.rewriter, asked.turns)
                trajectory.question = replace(trajectory.question, text=question)
            await play_episode(self.method, env, None)
        except EpisodeEnd as end:  # of the rewriter's: the method's are its own
            trajectory.status = end.status
        finally:
            self.engine.branches -= 1
        # The id that callers see is no counter: a trace is found by it, and there may be other replicas.
        trajectory.id = new_id()
        return trajectory
