"""Episodes to replay: every call that a method made of its engine, in order, and what its searches found.

`calls` plays the method's own coroutine with a voice that says what was said, so the prompts are those of the tokenizer at hand, whoever
was recorded: a scripted teacher on throw-away worlds, or the episodes that a stage kept (`stages.STAGE.record`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rolecast.data.records import read_corpus
from rolecast.methods.base import Method
from rolecast.ports import Completion, IndexInfo, JudgeInfo, Retriever, Verdict
from rolecast.rollout.collect import Episode
from rolecast.rollout.env import EpisodeEnd
from rolecast.rollout.render import Renderer
from rolecast.seeding import stream
from rolecast.teachers.base import Teacher, TeacherEnv, TeacherErrors, TeacherVoice
from rolecast.types import Passage, Trajectory
from rolecast.wire.coordinator import unpack
from rolecast.world.throwaway import ThrowawayRetriever, draw_throwaway

ERRORS = TeacherErrors(stop_early=0.15, wrong_relation=0.1, keep_distractors=0.2)  # so that members of a group differ


@dataclass(frozen=True, slots=True)
class Call:
    """One turn. `key`: the engine's name of it; `length`: tokens that it is forced to sample; `stops`: how many strings would end it."""

    key: str
    ids: tuple[int, ...]
    text: str
    length: int
    stops: int


@dataclass(slots=True)
class Record:
    """`calls`: of each episode in their order; each waits for the one before it. `found`: passages by group and query."""

    episodes: list[Episode] = field(default_factory=list)
    calls: list[list[Call]] = field(default_factory=list)
    found: dict[str, list[Passage]] = field(default_factory=dict)  # by query

    @property
    def prompts(self) -> int:
        return sum(len(call.ids) for calls in self.calls for call in calls)

    @property
    def sampled(self) -> int:
        return sum(call.length for calls in self.calls for call in calls)

    @property
    def turns(self) -> int:
        return sum(map(len, self.calls))


class Answers:
    """`Retriever` that answers from a record, at once, and `Judge` that finds all well, at once."""

    def __init__(self, found: Mapping[str, list[Passage]]) -> None:
        self._found = found

    async def info(self) -> Any:
        return IndexInfo("recorded")

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self._found[query] for query in queries]

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        raise NotImplementedError("the replayed method fetches nothing")

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise NotImplementedError("the replayed method embeds nothing")


class Approval:
    async def info(self) -> JudgeInfo:
        return JudgeInfo("approval")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        return Verdict(1.0)


class _Noting(Answers):
    """Asks another retriever what was not asked before."""

    def __init__(self, found: dict[str, list[Passage]], asked: Retriever) -> None:
        super().__init__(found)
        self._all, self._asked = found, asked

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        for query in queries:
            if query not in self._all:
                [self._all[query]] = await self._asked.search([query], k)
        return [self._all[query] for query in queries]


class _Said:
    """A teacher that says again what an episode's roles said, and a retriever that finds again what it found."""

    def __init__(self, said: Trajectory, passages: Mapping[str, Passage]) -> None:
        self._texts = iter([action.text for action in said.actions])
        self._found = iter([passages[id] for id in said.retrieved])
        self._each = len(said.retrieved) // said.searches if said.searches else 0

    def reply(self, role: str, state: Any, episode: Trajectory, rng: random.Random) -> str:
        return next(self._texts)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[next(self._found) for _ in range(self._each)] for _ in queries]


@dataclass(slots=True)
class _NotingEnv(TeacherEnv):
    """Keeps every call. `lengths`: of the replies, where they are not those of their texts."""

    calls: list[Call] = field(default_factory=list)
    lengths: Iterator[int] = field(default_factory=lambda: iter(()))

    async def complete(self, live: Any) -> Completion:
        said = await TeacherEnv.complete(self, live)
        length = next(self.lengths, len(said.ids))
        self.calls.append(Call(f"{live.thread.id}#{live.turn}", live.thread.ids, said.text, length, len(live.role.stop)))
        return said


def from_teacher(method: Method, renderer: Renderer, questions: int, group: int, reply: int, max_context: int) -> Record:
    """Groups of a teacher's episodes, each on a throw-away world. `reply`: forced length of every reply; 0: as the teacher says them."""
    record = Record()
    teacher = method.teacher(ERRORS)
    for number in range(questions):
        drawn = draw_throwaway(stream(0, "recorded", number))
        for member in range(group):
            episode = Episode(drawn.question, f"0.0:{number}", member)
            _play(record, method, renderer, episode, teacher, ThrowawayRetriever(drawn), reply, max_context)
    return record


def from_shards(method: Method, renderer: Renderer, folders: Sequence[Path], index: Path, reply: int, max_context: int) -> Record:
    """Recorded episodes that came to their answer. `index`: whose passages they found."""
    record, passages = Record(), {passage.id: passage for passage in read_corpus(index / "corpus.jsonl")}
    shards = sorted(shard for folder in folders for shard in folder.rglob("trajectories.json.gz"))
    for number, shard in enumerate(shards):
        for said in unpack(shard.read_bytes()):
            if said.method != method.name or said.status != "ok" or said.searches * method.config.k != len(said.retrieved):  # type: ignore[attr-defined]
                continue
            again, episode = _Said(said, passages), Episode(said.question, f"{number}/{said.group}", said.member)
            lengths = [len(action.ids) for action in said.actions]
            _play(record, method, renderer, episode, again, again, reply, max_context, lengths)
    return record


def _play(
    record: Record, method: Method, renderer: Renderer, episode: Episode, teacher: Teacher, retriever: Any, reply: int, max_context: int,
    lengths: Iterable[int] = (),
) -> None:  # fmt: skip
    trajectory = Trajectory(f"{episode.group}.{episode.member}", episode.question, episode.group, episode.member, method.name, 0)
    rng = stream(0, "member", trajectory.id)
    env = _NotingEnv(
        TeacherVoice(), _Noting(record.found, retriever), renderer, trajectory, max_context, teacher=teacher, rng=rng, lengths=iter(lengths)
    )
    try:
        method.rollout(episode.question, env).send(None)  # nothing in it waits
    except StopIteration:
        pass
    except EpisodeEnd as end:
        raise SystemExit(f"{trajectory.id}: {end}; raise --context") from None
    calls = [replace(c, length=reply or c.length) for c in env.calls]
    if longest := max((len(c.ids) + c.length for c in calls if len(c.ids) + c.length > max_context), default=0):
        raise SystemExit(f"{trajectory.id} takes {longest} tokens, the context has {max_context}; raise --context")
    record.episodes.append(episode)
    record.calls.append(calls)
