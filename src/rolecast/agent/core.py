"""The team as a service: one engine in this process, episodes of many callers batched together."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from rolecast.methods.base import Method
from rolecast.ports import Retriever, Sampling
from rolecast.rollout.collect import LocalEngine, play_episode
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Question, Trajectory


@dataclass(slots=True)
class Agent:
    """`start` before the first `ask`; the same coroutine as in training runs, without gold and without judge."""

    method: Method
    engine: LocalEngine
    retriever: Retriever
    renderer: Renderer
    max_context: int
    temperature: float = 0.0
    _driver: asyncio.Task[None] | None = None
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: int = 0
    _live: int = 0

    async def start(self) -> None:
        self._driver = asyncio.create_task(self._drive())

    async def stop(self) -> None:
        if self._driver is not None:
            self._driver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._driver

    @property
    def ready(self) -> bool:
        return self._driver is not None and not self._driver.done()

    async def ask(self, text: str) -> Trajectory:
        """Plays one episode. Its answer is None when the team broke its protocol or ran out of context."""
        self._asked += 1
        question = Question(f"ask-{self._asked}", text, Gold(()))
        trajectory = Trajectory(f"{question.id}.0", question, question.id, 0, self.method.name, 0)
        env = Env(self.engine, self.retriever, self.renderer, trajectory, Sampling(self.temperature), self.max_context, "serve")
        self._live += 1
        self._work.set()
        try:
            return await play_episode(self.method, env, None)
        finally:
            self._live -= 1

    async def _drive(self) -> None:
        """Steps the engine while any episode is live; sleeps otherwise."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._live:
                if self.engine.busy:
                    self.engine.step()
                # An episode that waits for something else than the engine is given time without spinning.
                await asyncio.sleep(0 if self.engine.busy else 0.001)
