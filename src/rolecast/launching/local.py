"""Runs a training job on this machine: its ranks as child processes, with the same module and arguments as in a pod."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from rolecast.errors import InputError, Interrupted, of_exit
from rolecast.exits import TOLD, again
from rolecast.launching.failure import DeadlineExceeded, JobFailed, report
from rolecast.launching.launcher import Outcome, say
from rolecast.launching.ranks import SAVE_SECONDS
from rolecast.launching.spec import TrainingJobSpec, read_spec
from rolecast.launching.status import PodEnd
from rolecast.processes import ERROR, child_of_this
from rolecast.schedule import find
from rolecast.signals import Stopped, signals_raise
from rolecast.stages.run import open_run

TAIL_LINES = 40
GRACE_SECONDS = SAVE_SECONDS + 10  # the ranks' own comes first


def command(spec: TrainingJobSpec) -> list[str]:
    return [sys.executable, "-m", "rolecast.launching.ranks", spec.stage, spec.run, f"--procs={spec.procs_per_node}"]


def train_here(run: str, stage: str, procs: int) -> None:
    """A stage of a run over `procs` processes of this machine, from its newest checkpoint."""
    kind = find(open_run(run).config.schedule, stage).kind
    LocalLauncher().run(read_spec({"run": run, "stage": stage, "kind": kind, "image": "none", "procs_per_node": procs}))


class LocalLauncher:
    """`command` makes the argument vector. The child has a process group of its own, which is stopped as a whole."""

    def __init__(
        self,
        command: Callable[[TrainingJobSpec], list[str]] = command,
        say: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._command, self._say, self._clock, self._grace = command, say, clock, grace_seconds

    def run(self, spec: TrainingJobSpec) -> Outcome:
        if spec.nodes > 1:
            raise InputError(f"nodes is {spec.nodes}, and this machine is one node; set nodes to 1 or launch on a cluster")
        start = self._clock()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **child_of_this()}
        if spec.zero_stage is not None:
            environment["ROLECAST_ZERO_STAGE"] = str(spec.zero_stage)
        with signals_raise():
            child = subprocess.Popen(
                self._command(spec), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
            last, errors = deque[str](maxlen=TAIL_LINES), list[str]()
            reader = threading.Thread(target=self._read, args=(child, last, errors), daemon=True)
            reader.start()
            try:
                code = child.wait(timeout=spec.deadlines.running)
            except subprocess.TimeoutExpired:
                self._stop(child)
                message = f"job {spec.job_name} was running for more than {spec.deadlines.running} s; raise deadlines.running or see why"
                raise DeadlineExceeded(message, report(message, "", (), {"the job": "\n".join(last)})) from None
            except Stopped as stopped:
                code = self._stop(child)
                reader.join(timeout=5)
                if code in TOLD and errors:
                    raise Interrupted(errors[0], stopped.number) from None
                raise
        reader.join(timeout=5)
        if code:
            self._fail(spec, code, "\n".join(last), errors)
        return Outcome(spec.job_name, "a child process", {"running": round(self._clock() - start, 1)})

    def _read(self, child: subprocess.Popen[str], last: deque[str], errors: list[str]) -> None:
        """Passes on what the ranks print, apart from the lines that they end with: the first of these is said in the end, once."""
        assert child.stdout is not None
        for line in child.stdout:
            last.append(line.rstrip("\n"))
            if line.startswith(ERROR):
                errors.append(line.removeprefix(ERROR).rstrip("\n"))
            else:
                self._say(line.rstrip("\n"))

    def _stop(self, child: subprocess.Popen[str]) -> int:
        """The learner saves on SIGTERM; who does not end in time is killed."""
        try:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(timeout=self._grace)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        except ProcessLookupError:
            child.wait()
        return child.returncode

    def _fail(self, spec: TrainingJobSpec, code: int, last: str, errors: list[str]) -> None:
        if code in TOLD and errors:  # a rank was told to end, not this process
            raise Interrupted(errors[0], code - 128)
        if not again(code) and errors:
            raise of_exit(code, errors[0])
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else "Error"
        end = PodEnd("ranks", reason, "", code)
        why = errors[0] if errors else "its output is above"
        message = f"job {spec.job_name} failed: its ranks ended with exit code {code} ({reason}); {why}"
        raise JobFailed(message, report(f"Job {spec.job_name} failed", "", [end], {"the job": last}))
