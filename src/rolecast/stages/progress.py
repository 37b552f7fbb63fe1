"""Progress with an estimated end: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

_LINE = re.compile(r"^(\S+) +[█░?]{20} (\d+)/(\d+) ")


class Progress:
    """Call `update` as often as you like; it prints at most every `every` seconds when the output is no terminal."""

    def __init__(self, label: str, total: int, start: int = 0, every: float = 10.0, out: TextIO | None = None, shown: bool = True) -> None:
        self._label, self._total, self._start = label, total, start
        self._shown = shown  # of the ranks of a job, the first one shows its progress
        self._out = out or sys.stderr
        self._terminal = self._out.isatty()
        self._every = 0.2 if self._terminal else every
        self._began = self._printed = time.monotonic()

    def update(self, done: int, metrics: Mapping[str, float] | None = None) -> None:
        now = time.monotonic()
        if not self._shown:
            return
        if done < self._total and now - self._printed < self._every:
            return
        self._printed = now
        spent = now - self._began
        rate = (done - self._start) / spent if spent > 0 else 0.0
        left = (self._total - done) / rate if rate > 0 else 0.0
        numbers = "  ".join(f"{name} {value:.3g}" for name, value in (metrics or {}).items())
        filled = 20 * done // max(1, self._total)
        line = f"{self._label:<10} {'█' * filled}{'░' * (20 - filled)} {done}/{self._total}  {_clock(spent)} < {_clock(left)}  {numbers}"
        if self._terminal:
            self._out.write(f"\r\x1b[K{line}" + ("\n" if done >= self._total else ""))
        else:
            self._out.write(line + "\n")
        self._out.flush()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:d}:{int(seconds) % 60:02d}"


@dataclass(frozen=True, slots=True)
class Seen:
    """One line of progress: of what, and how many of how many."""

    label: str
    done: int
    total: int


def read_progress(line: str) -> Seen | None:
    """What a line of `Progress` says, None for any other line."""
    found = _LINE.match(line)
    return Seen(found[1], int(found[2]), int(found[3])) if found else None
