"""Several commands of ours at once on this machine, each with a log of its own; told to end, all save what they have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TextIO

from rolecast.errors import Interrupted, RolecastError
from rolecast.processes import ERROR, child_of_this
from rolecast.signals import Told, handled, kill_at_once
from rolecast.threads import CHOSEN, COUNT, cores, given

NAP = 0.2  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Job:
    """`arguments`: of the `rolecast` command."""

    name: str
    arguments: Sequence[str]
    log: Path


@dataclass(slots=True)
class SideBySide:
    """At most `most` jobs at once, in their order, the cores shared out evenly."""

    most: int
    out: TextIO
    _running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = field(default_factory=dict)
    _signals: Told = field(default_factory=Told)

    def run(self, jobs: Sequence[Job]) -> None:
        """Blocks until all ended. One that fails stops no other; then they are named by `RolecastError`."""
        waiting, failed = list(jobs), []
        with handled(self._stop):
            try:
                while self._running or (waiting and not self._signals.number):
                    while waiting and len(self._running) < self.most and not self._signals.number:
                        self._start(waiting.pop(0))
                    failed += self._ended()
                    time.sleep(NAP)
            finally:
                for _, process, _ in self._running.values():
                    process.kill()
        if self._signals.number:
            raise Interrupted("told to end: every run has saved what it had", self._signals.number)
        if failed:
            job, line = failed[0]
            more = f" (and {len(failed) - 1} more failed)" if len(failed) > 1 else ""
            raise RolecastError(f"{job.name} failed{more}: {line}; see {job.log}")

    def _start(self, job: Job) -> None:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **child_of_this()}
        if not given():
            environment[COUNT], environment[CHOSEN] = str(max(1, cores() // self.most)), ""
        with job.log.open("ab") as log:
            command = [sys.executable, "-m", "rolecast.cli.main", *job.arguments]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self._running[job.name] = (job, process, time.monotonic())
        self._say(f"{job.name} begins; its log is {job.log}")

    def _ended(self) -> list[tuple[Job, str]]:
        """Jobs that failed since the last look, each with the line that it ended with."""
        failed = []
        for name, (job, process, began) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[name]
            self._say(f"{name} {'is done' if not code else f'ended with exit code {code}'} after {time.monotonic() - began:.0f} s")
            if code and not self._signals.number:
                failed.append((job, _last_error(job.log) or f"exit code {code}"))
        return failed

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self._signals.first(number, self._kill):
            return
        for _, process, _ in self._running.values():
            process.send_signal(signal.SIGTERM)

    def _kill(self) -> None:
        kill_at_once([process for _, process, _ in self._running.values()])

    def _say(self, line: str) -> None:
        self.out.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        self.out.flush()


def _last_error(log: Path) -> str:
    lines = [line.removeprefix(ERROR) for line in log.read_text(errors="replace").splitlines() if line.startswith(ERROR)]
    return lines[-1] if lines else ""
