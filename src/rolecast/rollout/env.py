"""What a method's coroutine acts in: threads to speak in, a corpus to search, and a record of everything.

The same `Env` serves training, evaluation and serving. `act` awaits the engine, so thousands of episodes can be in
flight while the scheduler batches their turns.

Nothing here depends on what came first: a thread is named by the path of what opened it, its draws by its name, and branches
that are played at once keep their records apart until they are put together in the branches' order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rolecast import spans
from rolecast.errors import EngineError, ExternalError
from rolecast.ports import Aborted, Completion, Engine, GenerateRequest, Retriever, Sampling
from rolecast.rollout.clock import SEARCH, Clock
from rolecast.rollout.limits import Limits, within
from rolecast.rollout.render import Renderer
from rolecast.rollout.scheduler import Left, together
from rolecast.rollout.snapshot import snapshot
from rolecast.rollout.waits import Waits
from rolecast.seeding import seed_of
from rolecast.tags import trim
from rolecast.types import Action, Message, Observation, Passage, Role, Status, Thread, Trajectory, endpoint_of

T = TypeVar("T")
Phase = str  # "train", "eval", "serve" or "prepare": only what METHODS names may depend on it
PREPARE: Phase = "prepare"  # of a rollout stage's episodes
Branch = Callable[["Env"], Coroutine[Any, Any, T]]  # several turns of one episode, in an env of their own


class EpisodeEnd(Exception):
    """Ends an episode before its answer."""

    def __init__(self, status: Status, reason: str = "") -> None:
        super().__init__(reason or status)
        self.status = status


class Overflow(EpisodeEnd):
    """A context has no room for a reply, or cut it short. A method may catch it and let the episode go on without the role."""

    def __init__(self, thread: Thread, room: int, limit: int) -> None:
        left = "has no room for a reply" if room < 1 else f"cut a reply after {room} tokens"
        super().__init__("length", f"thread {thread.id}: the context of {limit} tokens {left}")


class Spent(EpisodeEnd):
    """An episode has sampled as many tokens as it may. It ends whoever spoke last: no method goes on without the role."""

    def __init__(self, trajectory: Trajectory, tokens: int) -> None:
        super().__init__("length", f"episode {trajectory.id} has sampled the {tokens} tokens that it may (method.episode_tokens)")


class Watcher(Protocol):
    """Who looks on while an episode is played. It is told in the order in which things happen, and changes nothing."""

    def grew(self, thread: Thread) -> None:
        """The thread was opened, or has a turn more."""

    def searches(self, queries: Sequence[str]) -> None:
        """The queries are about to be searched."""

    def found(self, passages: Sequence[Passage]) -> None:
        """As they stand in the corpus."""


@dataclass(slots=True)
class _Names:
    """The names that an episode has given to threads."""

    taken: set[str] = field(default_factory=set)
    opened: Counter[str] = field(default_factory=Counter)  # threads by the path of their role


@dataclass(slots=True)
class Env:
    """An episode's, a branch's or a probe's. `path`: the branch's, from the episode down; a probe's threads are marked."""

    engine: Engine
    retriever: Retriever
    renderer: Renderer
    trajectory: Trajectory
    max_context: int  # tokens of a thread
    sampling: Sampling = field(default_factory=Sampling)
    phase: Phase = "train"
    path: tuple[str, ...] = ()
    probing: bool = False
    watcher: Watcher | None = None
    forgets: bool = False  # a context that is too long loses its beginning, where the episode would end
    waits: Waits = field(default_factory=Waits)
    clock: Clock = field(default_factory=Clock)  # the episode's
    limits: Limits = field(default_factory=Limits)
    left: Left | None = None  # turns of the episode's group
    version: str = ""  # the weights that the episode began with
    _spent: int = 0  # tokens sampled on the way here; branches that are live know nothing of each other's
    _threads: list[Thread] | None = None  # where this env records; the episode's own in the trajectory
    _queries: list[str] | None = None
    _retrieved: list[str] | None = None
    _names: _Names = field(default_factory=_Names)
    _gathering: bool = False

    def open(
        self, role: Role, messages: Sequence[Message], *, state: Any = None, key: str = "", parent: Thread | None = None,
        sampling: Sampling | None = None,
    ) -> LiveThread:  # fmt: skip
        """A new thread that starts with `messages`. `key` tells it from others of the role under the same parent: by default their number.

        `state`: what its actions are taken in. ValueError if there is a thread of that name.
        """
        self._check_free()
        place = "/".join((parent.id if parent else self.trajectory.id, *self.path, role.name))
        key = key or str(self._names.opened[place])
        self._names.opened[place] += 1
        id = f"{place}.{key}"
        if id in self._names.taken:
            raise ValueError(f"there is a thread {id} already; give each thread of role {role.name} a key of its own")
        self._names.taken.add(id)
        ids, text = self.renderer.prompt(messages, opened=endpoint_of(role.slot) is None)
        thread = Thread(id, role.name, role.slot, parent.id if parent else None, self.probing, key)
        thread.turns.append(Observation(ids, text, tuple(sorted(role.sees))))
        (self.trajectory.threads if self._threads is None else self._threads).append(thread)
        self.note(thread)
        return LiveThread(self, role, thread, state, sampling or self.sampling, list(messages))

    async def gather(self, branches: Mapping[str, Branch[T]]) -> list[T]:
        """Plays several branches of the episode at once; results in their order.

        Each gets an env of its own, named by its key, and must open and search in that one. When all are done, the first exception
        in their order is raised: what is recorded does not depend on which branch was faster.
        """
        self._check_free()
        parts = [replace(self, path=(*self.path, key), _threads=[], _queries=[], _retrieved=[]) for key in branches]
        self._gathering = True
        try:
            ends = await self._together([play(part) for play, part in zip(branches.values(), parts, strict=True)])
        finally:
            self._gathering = False
            before = self._spent
            for part in parts:
                self._record(part)
                self._spent += part._spent - before
        return [_result(end) for end in ends]

    def probe(self, sampling: Sampling | None = None) -> Env:
        """For extra samples: its threads are marked, drawn from seeds of their own, and its searches are not the episode's."""
        path = self.path if self.probing else (*self.path, "probe")
        queries, retrieved = (self._queries, self._retrieved) if self.probing else ([], [])
        limits = replace(self.limits, tokens=None)
        return replace(
            self, sampling=sampling or self.sampling, path=path, probing=True, limits=limits, _queries=queries, _retrieved=retrieved
        )  # fmt: skip

    async def search(self, query: str, k: int) -> list[Passage]:
        """The passages of one query, best first."""
        [passages] = await self.search_all([query], k)
        return passages

    async def search_all(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The passages of each query, in one call."""
        self._check_free()
        if not queries:
            return []
        if self.watcher is not None:
            self.watcher.searches(queries)
        with self.waits.on("search"), self._clocked(SEARCH), spans.span("search", queries=len(queries), k=k):
            found = await self._found(self.retriever.search(queries, k), f"no search for {queries[0]!r}")
        (self.trajectory.queries if self._queries is None else self._queries).extend(queries)
        self._note_found([passage for passages in found for passage in passages])
        if not self.probing:
            self.trajectory.searches += len(queries)
        return [[self._quoted(passage) for passage in passages] for passages in found]

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        """The passages with these ids, whole. Not counted as a search."""
        self._check_free()
        if not ids:
            return []
        with self.waits.on("search"), self._clocked(SEARCH), spans.span("fetch", passages=len(ids)):
            found = await self._found(self.retriever.fetch(ids), f"with no passage {ids[0]!r}")
        self._note_found(found)
        return [self._quoted(passage) for passage in found]

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The retriever's encoder, as scoring asks it."""
        return await self._found(self.retriever.embed(texts), f"no embedding of {len(texts)} texts")

    async def _found(self, call: Awaitable[T], asked: str) -> T:
        return await within(self.limits.search, call, f"{self.trajectory.id}: the retriever answered {asked}", "retriever.limit")

    def note(self, thread: Thread) -> None:
        """Tells who looks on that the thread grew."""
        if self.watcher is not None:
            self.watcher.grew(thread)

    def _quoted(self, passage: Passage) -> Passage:
        """As it may stand in a prompt: what would be control is broken up."""
        return replace(passage, title=self.renderer.quoted(passage.title), text=self.renderer.quoted(passage.text))

    def tokens(self, text: str) -> int:
        """How many tokens `text` takes in a prompt or an observation."""
        return len(self.renderer.encode(self.renderer.plain(text)))

    @property
    def allowance(self) -> int | None:
        """Tokens that the episode may still sample."""
        return None if self.limits.tokens is None else self.limits.tokens - self._spent

    def spend(self, tokens: int) -> None:
        self._spent += tokens

    async def complete(self, live: LiveThread) -> Completion:
        """The next turn of a thread. `Overflow` if there is no room for one, `Spent` if the episode may say no more, `EngineError` if the
        engine fails, `ExternalError` if an endpoint does."""
        t, turn, role, room = self.trajectory, live.turn, live.role, live.room
        if room < 1:
            raise Overflow(live.thread, room, self.max_context)
        if self.allowance is not None:
            room = min(room, self.allowance)
            if room < 1:
                raise Spent(t, self.limits.tokens or 0)
        ids = live.thread.ids[-max(1, self.max_context - role.max_tokens) :] if self.forgets else live.thread.ids
        request = GenerateRequest(
            ids, role.slot, min(role.max_tokens, room), role.stop, live.sampling,
            seed_of(t.seed, t.group, t.member, live.thread.id, turn), f"{live.thread.id}#{turn}",
            () if endpoint_of(role.slot) is None else tuple(live.said), self.left.turns if self.left is not None else 0, self.version,
        )  # fmt: skip
        try:
            with (
                self.waits.on("sample"),
                self._clocked(role.name),
                spans.span("sample", role=role.name, slot=role.slot, turn=turn, prompt_tokens=len(ids)),
            ):
                return await self.engine.generate(request)
        except (EngineError, ExternalError):
            raise
        except Exception as error:
            raise EngineError(f"the engine did not answer {request.key}: {type(error).__name__}: {error}") from error

    def _clocked(self, part: str) -> AbstractContextManager[None]:
        return self.clock.on(part, counts=not self.probing)

    async def _together(self, branches: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        return await together(branches, self.engine)

    def _record(self, part: Env) -> None:
        (self.trajectory.threads if self._threads is None else self._threads).extend(part._threads or ())
        (self.trajectory.queries if self._queries is None else self._queries).extend(part._queries or ())
        self._note(part._retrieved or ())

    def _note_found(self, passages: Sequence[Passage]) -> None:
        if self.watcher is not None:
            self.watcher.found(passages)
        self._note([passage.id for passage in passages])

    def _note(self, passages: Sequence[str]) -> None:
        (self.trajectory.retrieved if self._retrieved is None else self._retrieved).extend(passages)

    def _check_free(self) -> None:
        """While branches are played, what this env did would stand in the record where chance puts it."""
        if self._gathering:
            where = "/".join((self.trajectory.id, *self.path))
            raise RuntimeError(f"the env of {where} waits for its branches; act in the env that each branch is given")


@dataclass(slots=True)
class LiveThread:
    """A thread that can still grow. `state` may be changed or replaced between turns: each action keeps a copy. `said`: all of it as
    messages, in which what is observed after the prompt is the user's.
    """

    env: Env
    role: Role
    thread: Thread
    state: Any
    sampling: Sampling
    said: list[Message]

    @property
    def opening(self) -> str:
        """The tag that the prompt left open, as the beginning of the coming turn. An endpoint's prompt has its own template."""
        return self.env.renderer.opening if self.turn == 0 and endpoint_of(self.role.slot) is None else ""

    @property
    def turn(self) -> int:
        """The number of the coming turn."""
        return len(self.thread.actions)

    @property
    def room(self) -> int:
        """How many tokens more the context takes."""
        return self.role.max_tokens if self.env.forgets else self.env.max_context - self.thread.length

    async def act(self, parse: Callable[[str], T | None]) -> tuple[Action, T | None]:
        """Samples one turn. The second value is what `parse` made of its text: None marks the action invalid.

        `Overflow` where there is no room for a reply, and for one that was cut because there was less room than the role may
        speak; that one is recorded.
        """
        room, allowance, state = self.room, self.env.allowance, snapshot(self.state)
        try:
            completion = await self.env.complete(self)
        except Aborted as end:
            self._record_cut(end.ids)
            raise
        self._note_spoken(completion)
        parsed = parse(self.opening + trim(completion.text, self.role.stop))
        action = self._record(completion, parsed is not None, state)
        if completion.finish == "length" and room < self.role.max_tokens and len(completion.ids) >= room:
            raise Overflow(self.thread, room, self.env.max_context)
        if (
            completion.finish == "length"
            and allowance is not None
            and allowance < self.role.max_tokens
            and len(completion.ids) >= allowance
        ):
            raise Spent(self.env.trajectory, self.env.limits.tokens or 0)
        return action, parsed

    def observe(self, text: str, sources: Sequence[str] = ()) -> None:
        plain = self.env.renderer.plain(text)
        self.thread.turns.append(Observation(self.env.renderer.encode(plain), plain, tuple(sources)))
        self._say("user", text)
        self.env.note(self.thread)

    def _record(self, completion: Completion, valid: bool, state: Any) -> Action:
        action = Action(
            f"{self.thread.id}#{self.turn}", completion.ids, completion.logprobs, completion.version or self.env.engine.version,
            completion.text, completion.finish, valid,
        )  # fmt: skip
        self.thread.turns.append(action)
        self._say("assistant", completion.text)
        self.env.trajectory.states[action.id] = state
        self.env.note(self.thread)
        return action

    def _note_spoken(self, completion: Completion) -> None:
        env = self.env
        env.spend(len(completion.ids))
        if env.left is not None:
            env.left.spoke(env.trajectory.member)

    def _record_cut(self, ids: tuple[int, ...]) -> None:
        """What was sampled of a turn that nobody waits for any more: it counts in the cost, and in nothing else."""
        if ids:
            version, text = self.env.version or self.env.engine.version, self.env.renderer.decode(ids)
            self.thread.turns.append(Action(f"{self.thread.id}#{self.turn}", ids, (), version, text, "length", False))

    def _say(self, speaker: str, text: str) -> None:
        """Speakers take turns: many chat templates insist."""
        if self.said and self.said[-1]["role"] == speaker:
            text = self.said.pop()["content"] + text
        self.said.append({"role": speaker, "content": text})


def _result(end: T | BaseException) -> T:
    if isinstance(end, BaseException):
        raise end
    return end
