"""What every process of ours does at its start, and child processes that end with the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import signal
import sys
from pathlib import Path

from rolecast.scratch import PLACE, own
from rolecast.threads import prepare_threads

ERROR = "rolecast: "  # begins the one line that a process ends with
PARENT = "ROLECAST_DIE_WITH_PARENT"  # the parent's pid, for a child that is to end with it
END = "ROLECAST_END_FILE"  # where a rank writes the line that it ends with, which whoever started it says for all of them
TERMINATION = "ROLECAST_TERMINATION_LOG"
TERMINATION_LOG = "/dev/termination-log"  # what Kubernetes shows of a container that has ended, in its status
TERMINATION_BYTES = 4096  # it keeps no more


def die_with_parent() -> None:
    """If the parent asked for it, the kernel kills this process when the parent's thread that started it ends."""
    if sys.platform == "linux" and os.environ.get(PARENT):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if not _lives(int(os.environ[PARENT])):  # it was gone before the kernel was told
            sys.exit(1)


def child_of_this() -> dict[str, str]:
    """The variables of a process that is to end with this one, and whose temporary folders go with this one's."""
    return {PARENT: str(os.getpid()), PLACE: str(own())}


def _lives(pid: int) -> bool:
    """A zombie, which is dead and waits to be looked at, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def prepare_output() -> None:
    """What the encoding of a terminal or a file lacks is printed as "?", where Python would raise."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a test or kfp put in its place
            stream.reconfigure(errors="replace")


def say_error(message: str) -> None:
    print(f"{ERROR}{' '.join(message.split())}", file=sys.stderr, flush=True)


def say_termination(message: str) -> None:
    """Where there is such a log: in a container."""
    path = Path(os.environ.get(TERMINATION, TERMINATION_LOG))
    with contextlib.suppress(OSError):
        if path.exists():
            line = f"{ERROR}{' '.join(message.split())}".encode(errors="replace")[:TERMINATION_BYTES]
            path.write_text(line.decode(errors="ignore"), encoding="utf-8")  # no half a character


def prepare_process() -> None:
    """Log lines of one form, output in any encoding, threads that soon sleep, and libraries that stay quiet about themselves. To be
    called before torch is imported."""
    prepare_output()
    prepare_threads()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
