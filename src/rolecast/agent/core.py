"""The team as a service: one engine in this process, episodes of many callers batched together."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field

from rolecast.errors import RolecastError
from rolecast.methods.base import Method
from rolecast.ports import Retriever, Sampling
from rolecast.rollout.collect import LocalEngine, play_episode
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Question, Trajectory


@dataclass(slots=True)
class Agent:
    """`start` before the first `ask`; the same coroutine as in training runs, without gold and without judge.

    The engine's steps block the event loop that this runs in: a service gives it a thread of its own.
    """

    name: str
    method: Method
    engine: LocalEngine
    retriever: Retriever
    renderer: Renderer
    max_context: int
    temperature: float = 0.0
    _driver: asyncio.Task[None] | None = None
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _live: int = 0

    async def start(self) -> None:
        self._driver = asyncio.create_task(self._drive())

    async def stop(self) -> None:
        if self._driver is not None:
            self._driver.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):  # what it failed of was raised where it mattered
                await self._driver

    async def failed(self) -> BaseException:
        """Waits until the engine fails; gives its error. After that no question can be answered."""
        assert self._driver is not None, "start first"
        await asyncio.wait({self._driver})
        return asyncio.CancelledError() if self._driver.cancelled() else self._driver.exception() or RolecastError("the engine stopped")

    async def ask(self, text: str) -> Trajectory:
        """Plays one episode. Its answer is None when the team broke its protocol or ran out of context.

        `RolecastError` if what the episode needs is away: the retriever, or the engine.
        """
        if self._driver is None or self._driver.done():
            raise RolecastError("the engine is not running")
        episode = asyncio.create_task(self._play(text))
        try:
            # An engine that fails leaves its requests unanswered: waiting for the episode alone would be for ever.
            await asyncio.wait({episode, self._driver}, return_when=asyncio.FIRST_COMPLETED)
            if not episode.done():
                raise RolecastError("the engine failed while the team was answering")
            return episode.result()
        finally:
            episode.cancel()

    async def _play(self, text: str) -> Trajectory:
        # The id is no counter: a trace is found by it, and there may be other replicas.
        question = Question(f"ask-{secrets.token_hex(8)}", text, Gold(()))
        trajectory = Trajectory(question.id, question, question.id, 0, self.method.name, 0)
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
