"""Texts encoded by several processes. One that dies is started again, and its texts are given to another.

A process is sent the texts of one part and sends back their vectors: which texts are encoded together does not depend on how many
processes there are. Files are written by the process that asked, so what is kept is the same too.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from rolecast.errors import RolecastError
from rolecast.threads import COUNT, cores, given

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Encoder, Prefixes

log = logging.getLogger(__name__)
TRIES = 3  # processes that may die of the same part
Part = tuple[int, Sequence[str]]  # the number of its first text, and its texts
Made = tuple[int, npt.NDArray[np.float32]]


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    part: Part | None = None


class Encoding:
    """`procs` processes, each with an encoder of its own like `encoder`, as a context. They are started when there is work for them."""

    def __init__(self, encoder: Encoder, procs: int) -> None:
        self._encoder, self._procs = encoder, procs
        self._workers: dict[int, _Worker] = {}
        self._deaths: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers.values():
            worker.pipe.close()  # its process ends when it next asks for texts
            worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join()

    def some(self, lacking: Iterator[Part]) -> list[Made]:
        """Gives idle processes the next parts of `lacking`, waits until something is done, and returns that; nothing where there is no work.
        `RolecastError` names the texts that cannot be encoded."""
        for number in range(self._procs):
            if (number not in self._workers or self._workers[number].part is None) and (part := next(lacking, None)) is not None:
                self._give(number, part)
        busy = {worker.pipe: number for number, worker in self._workers.items() if worker.part is not None}
        ready = wait(list(busy)) if busy else []  # of a process that has died too: its pipe has ended
        return [made for pipe in ready if isinstance(pipe, Connection) and (made := self._received(busy[pipe])) is not None]

    def _give(self, number: int, part: Part) -> None:
        if number not in self._workers:
            self._workers[number] = self._started(number)
        worker = self._workers[number]
        worker.part = part
        with suppress(OSError):  # it has died, and is found so when it is read from
            worker.pipe.send(part[1])

    def _started(self, number: int) -> _Worker:
        context = get_context("spawn")  # a fork would have torch's locks, and nobody to open them
        ours, theirs = context.Pipe()
        of = (theirs, number, self._procs, type(self._encoder), self._encoder.name, self._encoder.prefixes)
        process = context.Process(target=_encode, args=of, daemon=True, name=f"encoding {number}")
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _received(self, number: int) -> Made | None:
        worker = self._workers[number]
        assert worker.part is not None
        at, texts = worker.part
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(number, worker.part)
            return None
        worker.part = None
        if isinstance(answer, np.ndarray):
            return at, answer
        kind, message = answer
        raise kind(f"{_named(at, texts)} cannot be encoded: {message}")

    def _bury(self, number: int, part: Part) -> None:
        """Of a process that died: another one takes its part, unless that has cost too many."""
        worker = self._workers.pop(number)
        worker.process.join()
        at, texts = part
        self._deaths[at] = self._deaths.get(at, 0) + 1
        code = worker.process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._deaths[at] >= TRIES:
            raise RolecastError(
                f"a process that encodes {_named(at, texts)} died {TRIES} times, at last by {how}; look at these texts, "
                "or take fewer processes (--procs) where memory is short; what was encoded is kept"
            )
        log.warning("process %d, which encoded %s, died by %s; another one takes them", number, _named(at, texts), how)
        self._give(number, part)


def _named(at: int, texts: Sequence[str]) -> str:
    return f"texts {at} to {at + len(texts) - 1}"


def _encode(pipe: Connection, number: int, procs: int, kind: type[Any], name: str, prefixes: Prefixes) -> None:
    """What a process does, until nobody sends it anything."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the one that asked ends the others
    if not given():
        os.environ[COUNT] = str(max(1, cores() // procs))
    encoder = kind(name, prefixes)
    encoder.place = number
    while True:
        try:
            texts = pipe.recv()
        except EOFError:
            return
        try:
            answer: Any = encoder.encode(texts, "passage")
        except RolecastError as error:
            answer = type(error), str(error)
        except Exception as error:
            answer = RolecastError, f"{type(error).__name__} {error}"
        pipe.send(answer)
