"""What a method's coroutine acts in: threads to speak in, a corpus to search, and a record of everything.

The same `Env` serves training, evaluation and serving. `act` awaits the engine, so thousands of episodes can be in
flight while the scheduler batches their turns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rolecast.ports import Completion, Engine, GenerateRequest, Retriever, Sampling
from rolecast.rollout.render import Renderer
from rolecast.seeding import seed_of
from rolecast.tags import trim
from rolecast.types import Action, Message, Observation, Passage, Role, Status, Thread, Trajectory

T = TypeVar("T")
Phase = str  # "train", "eval" or "serve": only what METHODS names may depend on it


class EpisodeEnd(Exception):
    """Ends an episode before its answer."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


@dataclass(slots=True)
class Env:
    engine: Engine
    retriever: Retriever
    renderer: Renderer
    trajectory: Trajectory
    sampling: Sampling = field(default_factory=Sampling)
    max_context: int = 4096
    phase: Phase = "train"
    probing: bool = False
    _state: Any = None
    _acts: int = 0

    def open(self, role: Role, messages: Sequence[Message], parent: str | None = None) -> LiveThread:
        """A new thread that starts with `messages`."""
        ids, text = self.renderer.prompt(messages)
        thread = Thread(f"{self.trajectory.id}#{len(self.trajectory.threads)}", role.name, role.slot, parent, self.probing)
        thread.turns.append(Observation(ids, text, tuple(sorted(role.sees))))
        self.trajectory.threads.append(thread)
        return LiveThread(self, role, thread)

    def snapshot(self, state: Any) -> None:
        """Keeps a copy of the state that the next action is taken in; `score` and `probe` read it by the action's id."""
        self._state = copy.deepcopy(state)

    async def search(self, query: str, k: int) -> list[Passage]:
        [found] = await self.retriever.search([query], k)
        passages = [replace(p, title=self.renderer.quoted(p.title), text=self.renderer.quoted(p.text)) for p in found]
        self.trajectory.searches += 1
        self.trajectory.retrieved += [passage.id for passage in passages]
        return passages

    def tokens(self, text: str) -> int:
        """How many tokens `text` takes in a prompt or an observation."""
        return len(self.renderer.encode(self.renderer.plain(text)))

    async def complete(self, role: Role, ids: tuple[int, ...]) -> Completion:
        room = self.max_context - len(ids)
        if room < 1:
            raise EpisodeEnd("length")
        t = self.trajectory
        # A probe's stream is its own, so that switching probes on leaves every other action as it was.
        seed = seed_of(t.seed, t.group, t.member, "probe" if self.probing else "act", self._acts)
        request = GenerateRequest(ids, role.slot, min(role.max_tokens, room), role.stop, self.sampling, seed)
        return await self.engine.generate(request)

    def record(self, completion: Completion, valid: bool, thread: Thread) -> Action:
        kind = "p" if self.probing else "a"
        action = Action(
            f"{self.trajectory.id}/{kind}{self._acts}", completion.ids, completion.logprobs, self.engine.version,
            completion.text, completion.finish, valid,
        )  # fmt: skip
        self._acts += 1
        thread.turns.append(action)
        self.trajectory.states[action.id] = self._state
        return action


@dataclass(slots=True)
class LiveThread:
    """A thread that can still grow."""

    env: Env
    role: Role
    thread: Thread

    async def act(self, parse: Callable[[str], T | None]) -> tuple[Action, T | None]:
        """Samples one turn. The second value is what `parse` made of its text: None marks the action invalid."""
        completion = await self.env.complete(self.role, self.thread.ids)
        opening = self.env.renderer.opening if len(self.thread.turns) == 1 else ""
        parsed = parse(opening + trim(completion.text, self.role.stop))
        return self.env.record(completion, parsed is not None, self.thread), parsed

    def observe(self, text: str, sources: Sequence[str] = ()) -> None:
        plain = self.env.renderer.plain(text)
        self.thread.turns.append(Observation(self.env.renderer.encode(plain), plain, tuple(sources)))
