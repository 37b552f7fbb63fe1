"""The team as a service: one engine in this process, episodes of many callers batched together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Protocol

from rolecast.errors import RolecastError
from rolecast.methods.base import Method
from rolecast.ports import Engine, Retriever, Sampling
from rolecast.rollout.collect import play_episode
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Question, Trajectory


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
    temperature: float = 0.0
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

    async def ask(self, text: str) -> Trajectory:
        """Plays one episode. Its answer is None when the team broke its protocol or ran out of context.

        `RolecastError` if what the episode needs is away: the retriever, or the engine.
        """
        if not self._running or self.engine.failure:
            raise RolecastError("the engine is not running")
        try:
            return await self._play(text)
        except Exception as error:
            if self.engine.failure:
                raise RolecastError("the engine failed while the team was answering") from error
            raise

    async def _play(self, text: str) -> Trajectory:
        # The id is no counter: a trace is found by it, and there may be other replicas.
        question = Question(f"ask-{secrets.token_hex(8)}", text, Gold(()))
        trajectory = Trajectory(question.id, question, question.id, 0, self.method.name, 0)
        env = Env(self.engine, self.retriever, self.renderer, trajectory, self.max_context, Sampling(self.temperature), "serve")
        self.engine.branches += 1
        try:
            return await play_episode(self.method, env, None)
        finally:
            self.engine.branches -= 1
