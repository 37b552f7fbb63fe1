"""Runs a training job on this machine: torchrun as a child process, with the same module and arguments as in a pod."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from rolecast.errors import InputError
from rolecast.launching.failure import DeadlineExceeded, JobFailed, report
from rolecast.launching.launcher import Outcome, Terminated, say, sigterm_raises
from rolecast.launching.learner_pod import GRACE_SECONDS
from rolecast.launching.spec import TrainingJobSpec
from rolecast.launching.status import PodEnd

TAIL_LINES = 40


def command(spec: TrainingJobSpec) -> list[str]:
    """`--standalone` picks a free port, so that two jobs on one machine do not meet."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={spec.procs_per_node}"),
        *("-m", "rolecast.learner.main", spec.stage, spec.run),
    ]


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
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if spec.zero_stage is not None:
            environment["ROLECAST_ZERO_STAGE"] = str(spec.zero_stage)
        with sigterm_raises():
            child = subprocess.Popen(
                self._command(spec), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
            last: deque[str] = deque(maxlen=TAIL_LINES)
            reader = threading.Thread(target=self._read, args=(child, last), daemon=True)
            reader.start()
            try:
                code = child.wait(timeout=spec.deadlines.running)
            except subprocess.TimeoutExpired:
                self._stop(child)
                message = f"job {spec.job_name} was running for more than {spec.deadlines.running} s; raise deadlines.running or see why"
                raise DeadlineExceeded(message, report(message, "", (), {"the job": "\n".join(last)})) from None
            except (Terminated, KeyboardInterrupt):
                self._say(f"interrupted: stopping job {spec.job_name}")
                self._stop(child)
                raise
        reader.join(timeout=5)
        if code:
            self._fail(spec, code, "\n".join(last))
        return Outcome(spec.job_name, "a child process", {"running": round(self._clock() - start, 1)})

    def _read(self, child: subprocess.Popen[str], last: deque[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            last.append(line.rstrip("\n"))
            self._say(line.rstrip("\n"))

    def _stop(self, child: subprocess.Popen[str]) -> None:
        """The learner saves on SIGTERM; who does not end in time is killed."""
        try:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(timeout=self._grace)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        except ProcessLookupError:
            child.wait()

    def _fail(self, spec: TrainingJobSpec, code: int, last: str) -> None:
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else "Error"
        end = PodEnd("torchrun", reason, "", code)
        message = f"job {spec.job_name} failed: torchrun ended with exit code {code} ({reason}); its output is above"
        raise JobFailed(message, report(f"Job {spec.job_name} failed", "", [end], {"the job": last}))
