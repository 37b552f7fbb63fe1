"""Questions of many callers: how many are played at once, how many wait, what is counted, which traces are kept."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rolecast import spans
from rolecast.agent.core import Asked
from rolecast.agent.traces import Trace, Traces
from rolecast.agent.watch import Watch
from rolecast.errors import ExternalError, InputError, RolecastError
from rolecast.evaluation.trace import trace
from rolecast.service.errors import Overloaded
from rolecast.service.tokens import CALLER
from rolecast.types import Trajectory

log = logging.getLogger(__name__)
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)


class Unavailable(RolecastError):
    """What an episode needs does not answer; the client should try again (503)."""


class Broken(RolecastError):
    """A fault of ours (500)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An episode that was played, its trace, and the link to it."""

    episode: Trajectory
    trace: Trace
    link: str


class Episodes:
    """`play` answers one question. At most `max_live` are played at once; `max_waiting` more wait in order of arrival.

    A question has at most `max_characters`: this is checked before anything is tokenised, which takes the team's thread.
    `traces` keeps the trace of every answer. `log_questions`: without it no question, nor a message that may quote one, reaches the log.
    """

    def __init__(
        self, play: Callable[[Asked], Awaitable[Trajectory]], traces: Traces, *, max_live: int, max_waiting: int, registry: CollectorRegistry,
        max_characters: int = 2**14, log_questions: bool = False,
    ) -> None:  # fmt: skip
        self._play, self._traces, self._max_live, self._most = play, traces, max_live, max_live + max_waiting
        self._max_characters, self._log_questions = max_characters, log_questions
        self._slots = asyncio.Semaphore(max_live)
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._seconds = Histogram(
            "rolecast_agent_question_seconds",
            "Seconds from a question to its answer, waiting included.",
            buckets=SECONDS,
            registry=registry,
        )
        self._ended = Counter("rolecast_agent_questions", "Questions by how they ended.", ["status"], registry=registry)
        self._tokens = Counter("rolecast_agent_tokens", "Tokens read and sampled by all roles.", ["kind"], registry=registry)
        self._searches = Counter("rolecast_agent_searches", "Searches of all episodes.", registry=registry)
        Gauge("rolecast_agent_requests_waiting", "Questions that wait for others to end.", registry=registry).set_function(
            lambda: self.waiting
        )
        Gauge("rolecast_agent_requests_running", "Questions that are being answered.", registry=registry).set_function(
            lambda: len(self._tasks) - self.waiting
        )

    @property
    def waiting(self) -> int:
        return max(0, len(self._tasks) - self._max_live)

    def submit(self, asked: Sequence[Asked]) -> list[asyncio.Task[Answer]]:
        """One running task for each question; all of them are taken or none. A task that is cancelled gives its place back.

        `InputError` for what is no question, `Overloaded` when too many wait; the tasks raise `Unavailable` or `Broken`.
        """
        for one in asked:
            self._check(one)
        if len(asked) > self._most:
            raise InputError(f"{len(asked)} questions at once; send at most {self._most}")
        if len(self._tasks) + len(asked) > self._most:
            raise Overloaded(f"{self.waiting} questions are waiting; try again")
        return [self._start(one) for one in asked]

    async def answers(self, texts: Sequence[str]) -> list[Answer]:
        """In the order of the questions; the first error is raised and ends the others."""
        tasks = self.submit([Asked(text) for text in texts])
        try:
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()

    def _check(self, asked: Asked) -> None:
        if asked.characters > self._max_characters:
            raise InputError(f"the question has {asked.characters} characters; send at most {self._max_characters}")
        for text in (asked.text, *(turn["content"] for turn in asked.turns)):
            if not text.strip():
                raise InputError("the question is empty")
            try:
                text.encode()
            except UnicodeEncodeError:
                raise InputError("the question holds half of a surrogate pair; send whole characters") from None

    def _start(self, asked: Asked) -> asyncio.Task[Answer]:
        watch = asked.watch or Watch()
        task = asyncio.create_task(self._answer(replace(asked, watch=watch), watch))
        self._tasks.add(task)
        task.add_done_callback(self._end)  # not in the coroutine: a task that is cancelled early never runs it
        return task

    def _end(self, task: asyncio.Task[Answer]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: its caller may have gone

    async def _answer(self, asked: Asked, watch: Watch) -> Answer:
        begun, status = time.perf_counter(), "error"
        try:
            with spans.span("question"):
                async with self._slots:
                    episode = await self._play(asked)
            status = episode.status
            trace = self._noted(episode, watch, time.perf_counter() - begun)
            return Answer(episode, trace, await self._traces.add(trace, CALLER.get()))
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        except RolecastError as error:
            log.warning("a question was not answered: %s", self._told(error, asked))
            raise Unavailable(str(error)) from error
        except Exception as error:
            log.error("a question was not answered: %s", self._told(error, asked))
            # Whoever logs this one shows neither the message nor the cause.
            raise Broken(f"internal error: {type(error).__name__}") from None
        finally:
            self._ended.labels(status).inc()

    def _told(self, error: Exception, asked: Asked) -> str:
        """What the log says of it. Where questions stay out, that is the place in the code for what may quote anything."""
        named = isinstance(error, RolecastError)
        if self._log_questions:
            return f"{asked.text!r}: {error}" if named else "".join(traceback.format_exception(error))
        if named and not isinstance(error, InputError | ExternalError):  # an endpoint may quote what it was asked
            return str(error).replace(asked.text, "[question]")
        return "".join([f"{type(error).__name__} (--log-questions shows its message) at\n", *traceback.format_tb(error.__traceback__)])

    def _noted(self, episode: Trajectory, watch: Watch, seconds: float) -> Trace:
        """Counts and logs it; its trace."""
        read, sampled = token_counts(episode)
        self._seconds.observe(seconds)
        self._tokens.labels("read").inc(read)
        self._tokens.labels("sampled").inc(sampled)
        self._searches.inc(episode.searches)
        if self._log_questions:
            fields = {"question": episode.question.text, "answer": episode.answer, "trace": episode.id}
            log.info("a question ended as %s", episode.status, extra={"fields": fields})
        return {
            **trace(episode),
            "passages": [{"id": found.id, "title": found.title, "text": found.text} for found in watch.passages.values()],
            "seconds": round(seconds, 3),
            "answered": datetime.now(UTC).isoformat(timespec="seconds"),
            "tokens": {"read": read, "sampled": sampled},
        }


def token_counts(episode: Trajectory) -> tuple[int, int]:
    """Tokens that the roles read, and tokens that were sampled."""
    sampled = sum(len(action.ids) for action in episode.actions)
    return sum(len(thread.ids) for thread in episode.threads) - sampled, sampled
