"""SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal is gone): an end with one line and with 130, 143 or 129, never a traceback."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from rolecast.scratch import leave

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TWICE = 1.0  # seconds in which one SIGTERM may arrive on two ways
Handler = Callable[[int, FrameType | None], None]


class Stopped(SystemExit):
    """The process was told to end, and there was nothing to save. Event loops and typer let a SystemExit through, and nothing else."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """`handler` gets these signals meanwhile. Only a process's main thread can do that; elsewhere nothing changes. A signal that the
    process was started to ignore (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    for number, old in before.items():
        if old != signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Told:
    """The signal that told this process to end. A second Ctrl-C ends it at once, and so does a SIGTERM that cannot be the first one on
    another way: a group's reaches a process itself and through its parent.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0

    def first(self, number: int, before: Callable[[], object] = lambda: None) -> bool:
        """Whether it is the first. One that ends all at once does not return; `before` that comes what is left to do."""
        if number == signal.SIGHUP:
            _leave_the_terminal()
        if not self.number:
            self.number, self._since = number, time.monotonic()
            return True
        if number == signal.SIGINT or time.monotonic() - self._since >= TWICE:
            before()
            end_at_once(number)
        return False


@contextmanager
def signals_raise() -> Iterator[None]:
    """The first signal raises `Stopped` in the main thread; see `Told` of a second one."""
    told = Told()

    def stop(number: int, frame: FrameType | None) -> None:
        if told.first(number):
            raise Stopped(number)

    with handled(stop):
        yield


def _leave_the_terminal() -> None:
    """What is printed to a terminal that is gone would be an error in the middle of saving."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(nowhere, stream)
    os.close(nowhere)


def kill_at_once(processes: Iterable[subprocess.Popen[Any]]) -> None:
    """Returns when they are dead. In a signal's handler: whoever else waits for them still hears how they ended."""
    running = [process for process in processes if process.returncode is None]
    for process in running:
        process.kill()
    for process in running:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def end_at_once(number: int) -> NoReturn:
    os.write(2, b"rolecast: ended at once; what was not saved yet is lost\n")
    leave(128 + number)
