"""The one table of how processes end: the command line, the ranks of a job, the container around them, the launcher and the steps of a
pipeline all exit by it, and whoever starts them reads here what to do next. docs/running.md shows the same table.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

DONE = 0
FAILED = 1
BAD_INPUT = 2
NAMED_STOP = 3
PEER_LOST = 4  # more than one process of a job may tell of one fault: this one only lost the other
KILLED = 128 + signal.SIGKILL
TOLD = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))  # what a process exits with that was told to end


@dataclass(frozen=True, slots=True)
class Exit:
    """`again`: whether the same job may come further when it is submitted again, from its last checkpoint."""

    code: int
    means: str
    again: bool


TABLE = (
    Exit(DONE, "done", again=False),
    Exit(FAILED, "a fault that may pass, or one that nobody foresaw: a part is away, a disk is full, a traceback", again=True),
    Exit(BAD_INPUT, "bad input: a setting, a file, an address or a credential that somebody has to put right", again=False),
    Exit(NAMED_STOP, "a named stop: what the run itself has come to, and would come to again from its checkpoint", again=False),
    Exit(PEER_LOST, "another process of the job ended first; its own end says why", again=True),
    Exit(128 + signal.SIGHUP, "told to end: the terminal is gone; what was trained is saved", again=True),
    Exit(128 + signal.SIGINT, "told to end: Ctrl-C; what was trained is saved", again=True),
    Exit(KILLED, "killed: out of memory, or its grace was over before it had saved", again=True),
    Exit(128 + signal.SIGTERM, "told to end: a drain, an eviction, a deletion; what was trained is saved", again=True),
)
_BY_CODE = {row.code: row for row in TABLE}


def meaning(code: int) -> str:
    """For people; a code that is not in the table is a signal's, or nobody's."""
    if code in _BY_CODE:
        return _BY_CODE[code].means
    if code > 128 and code - 128 in {number.value for number in signal.Signals}:
        return f"ended by {signal.Signals(code - 128).name}"
    return "ended in a way that has no name"


def again(code: int) -> bool:
    """Whether to submit the job again. A code that is not in the table is a fault that nobody foresaw."""
    return _BY_CODE.get(code, _BY_CODE[FAILED]).again


def of_process(returncode: int) -> int:
    """The exit code as a shell and a container tell it; `subprocess` says −9 of a process that signal 9 ended."""
    return 128 - returncode if returncode < 0 else returncode


def cause(codes: Iterable[int]) -> int:
    """Of the codes of processes that work together, in the order in which they ended: the one that says why they did.

    Who was told to end, or only lost another one, follows; who failed for a reason of its own leads.
    """
    ended = [code for code in codes if code != DONE]
    for follows in ((*TOLD, PEER_LOST), (PEER_LOST,), ()):
        for code in ended:
            if code not in follows:
                return code
    return DONE
