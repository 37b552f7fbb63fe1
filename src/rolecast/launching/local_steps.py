"""The steps of a pipeline that runs on this machine: processes that are shown, told to end, and asked how they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TextIO

from rolecast.errors import Interrupted, RolecastError, of_exit
from rolecast.exits import TOLD
from rolecast.processes import ERROR, child_of_this
from rolecast.scratch import scratch
from rolecast.signals import Told, kill_at_once

BY_KFP = "[KFP Executor"
LAST = "conclude"  # the step after all others, however they ended; who started the pipeline here is told anyway


@dataclass(slots=True)
class Steps:
    """`run` stands in for kfp's function of that purpose. What a step prints goes to `out`, without what kfp says around it."""

    out: TextIO
    name: str = ""  # of the step that runs, or that was the last
    code: int = 0  # that it ended with
    error: str = ""  # the line that it ended with
    _signals: Told = field(default_factory=Told)
    _process: subprocess.Popen[str] | None = None
    _hidden: bool = field(default=False, init=False)  # in what kfp prints of a step's inputs

    @property
    def failed(self) -> bool:
        return bool(self.code or self._signals.number)

    def run(self, full_command: Sequence[str], env_vars: Mapping[str, str] | None = None) -> int:
        """`full_command`: kfp's shell script that puts the component's source into a file, that source, and its arguments.

        There is no shell here: it would die of the signal that its child is to save its work on. The process has a session of its
        own, so that a terminal's Ctrl-C is this process's to pass on.
        """
        if self._signals.number:
            return 1
        _shell, _option, _script, source, *arguments = full_command
        if name_of(arguments) == LAST:
            return self._process_of(source, arguments, env_vars, shown=False)
        self.name = name_of(arguments)
        self._say(f"{time.strftime('%H:%M:%S')} {self.name}")
        self.code = self._process_of(source, arguments, env_vars)
        return self.code

    def _process_of(self, source: str, arguments: Sequence[str], env_vars: Mapping[str, str] | None, shown: bool = True) -> int:
        with scratch("step") as folder:
            module = folder / "step.py"
            module.write_text(source)
            command = [sys.executable, "-m", "kfp.dsl.executor_main", "--component_module_path", str(module), *arguments]
            environment = {**os.environ, **(env_vars or {}), "_KFP_RUNTIME": "true", "PYTHONUNBUFFERED": "1", **child_of_this()}
            environment.setdefault("PYTHONWARNINGS", "ignore")
            self._process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1, start_new_session=True
            )
            if self._signals.number:  # while it was started
                self._process.send_signal(signal.SIGTERM)
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if shown:
                    self._show(line.rstrip())
            return self._process.wait()

    def stop(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler: the step saves what it has at the end of what it does. A second one ends all at once."""
        if not self._signals.first(number, self._kill):
            return
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _kill(self) -> None:
        if self._process is not None:
            kill_at_once([self._process])

    def failure(self) -> RolecastError:
        """What the last step ended with."""
        told = self._signals.number or (self.code - 128 if self.code in TOLD else 0)
        if told:
            return Interrupted(self.error or f"told to end: nothing was to be saved in {self.name or 'the pipeline'}", told)
        if self.error:
            return of_exit(self.code, self.error)
        how = f"signal {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return RolecastError(f"step {self.name} ended with {how}; its output is above, the same command goes on")

    def _show(self, line: str) -> None:
        if self._hidden:
            self._hidden = line != "}"
        elif BY_KFP in line:
            self._hidden = line.endswith("Got executor_input:")
        elif line.startswith(ERROR):
            self.error = line.removeprefix(ERROR)  # said in the end, by whoever was called
        elif line:
            self._say(f"    {line}")

    def _say(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()


def name_of(arguments: Sequence[str]) -> str:
    """The component with the stage that it is for, from kfp's arguments."""
    named = dict(zip(arguments[::2], arguments[1::2], strict=False))
    given = json.loads(named.get("--executor_input", "{}")).get("inputs", {}).get("parameterValues", {})
    return " ".join(filter(None, (named.get("--function_to_execute", "step"), given.get("stage"))))
