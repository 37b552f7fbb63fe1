"""What methods share whose one role thinks, searches and answers in one growing context: `search_r1`, `autorefine`, `react`, `search_o1`."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from rolecast.methods.base import Method, MethodConfig, Most, Spoken
from rolecast.methods.information import SOURCES, information
from rolecast.rollout.env import Env, LiveThread
from rolecast.teachers.base import TeacherErrors, best_answer, next_query, reasoning
from rolecast.teachers.thoughts import SHORTHAND, Thoughts
from rolecast.types import Observation, Passage, Question, Trajectory

Move = Mapping[str, str]  # {"search": query} or {"answer": answer}, whatever else the reply holds


class TranscriptConfig(MethodConfig):
    max_turns: int = Field(4, ge=1)  # searches, before one last turn without
    k: int = Field(3, ge=1)  # passages of a search
    max_tokens: int = Field(500, ge=1)  # new tokens a turn


class PassagesConfig(TranscriptConfig):
    observation_tokens: int = Field(500, ge=8)  # of what a search shows; longer is cut inside


@dataclass(slots=True)
class TranscriptState:
    """What the prompt has is the question; all else is in the transcript."""

    question: str
    queries: list[str] = field(default_factory=list)


class Transcript(Method):
    """`speaker`: the role whose transcript it is. `again`: what answers a reply that is no move, without penalty."""

    speaker: ClassVar[str]
    again: ClassVar[str]
    config: TranscriptConfig

    @property
    def k(self) -> int:
        return self.config.k

    @property
    def most(self) -> Most:
        return Most({self.speaker: Spoken(1, self.config.max_turns + 1)}, self.config.max_turns)

    def state(self, question: str) -> TranscriptState:
        return TranscriptState(question)

    async def rollout(self, question: Question, env: Env) -> str | None:
        """Up to `max_turns` searches and one last turn in which only an answer counts."""
        state = self.state(question.text)
        role = self.roles[self.speaker]
        thread = env.open(role, self.messages(role, state), state=state)
        for turn in range(self.config.max_turns + 1):
            _, move = await thread.act(lambda text: self.read(text, thread))
            if move is not None and "answer" in move:
                return move["answer"]
            if turn == self.config.max_turns:
                return None
            if move is None:
                thread.observe(self.again)
                continue
            state.queries.append(move["search"])
            await self.respond(move["search"], thread, env)
        return None

    @abstractmethod
    def read(self, text: str, thread: LiveThread) -> Move | None:
        """A reply's move; None where it is neither a search nor an answer, or says nothing. `thread`: what came before."""

    @abstractmethod
    async def respond(self, query: str, thread: LiveThread, env: Env) -> None:
        """Searches, and lets the transcript have what was found."""


class PassageTranscript(Transcript):
    """The transcript has the passages themselves, between the two parts of `frame`."""

    frame: ClassVar[tuple[str, str]]
    config: PassagesConfig

    async def respond(self, query: str, thread: LiveThread, env: Env) -> None:
        thread.observe(self.information(await env.search(query, self.config.k), env), SOURCES)

    def information(self, passages: Sequence[Passage], env: Env) -> str:
        """The observation, cut inside to its token limit."""
        return information(passages, self.config.prompts, self.frame, self.config.observation_tokens, env)


@dataclass(frozen=True, slots=True)
class Step:
    """What a teacher does next: a query, or, where that is None, the answer with its reasons."""

    query: str | None
    answer: str = ""
    reasons: str = ""


class TranscriptTeacher:
    """Reads what the transcript's observations said. It searches at most `max_turns` times, then answers with what it has."""

    def __init__(self, errors: TeacherErrors, max_turns: int, thoughts: Thoughts = SHORTHAND) -> None:
        self.errors = errors
        self.max_turns = max_turns
        self.thoughts = thoughts

    def step(self, role: str, state: TranscriptState, episode: Trajectory, rng: random.Random) -> Step:
        """`role`: whose transcript it is."""
        [thread] = episode.threads_of(role)
        known = " ".join(turn.text for turn in thread.turns[1:] if isinstance(turn, Observation))
        query = None
        if len(state.queries) < self.max_turns:
            query = next_query(episode.question, known, state.queries, self.errors, rng)
        if query is not None:
            return Step(query)
        reasons = self.thoughts.conclude(reasoning(episode.question, known, state.queries))
        return Step(None, best_answer(episode.question, known, state.queries), reasons)
