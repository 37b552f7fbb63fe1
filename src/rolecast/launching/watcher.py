"""Watches one job until it ends: list, then watch, list again when the history is gone or the connection was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from rolecast.launching.cluster import Blip, Cluster, Gone, JobKind, Resource
from rolecast.launching.failure import DeadlineExceeded, DeletedExternally, LaunchError, job_failed, report
from rolecast.launching.spec import Backoff, TrainingJobSpec
from rolecast.launching.states import Lifecycle, State
from rolecast.launching.status import observe, pod_ends

T = TypeVar("T")
RETRY = Backoff(base=0.5, limit=30.0)
WINDOW_SECONDS = 20  # pods change without the job: at least this often they are looked at
TAIL_LINES = 40


class Logs(Protocol):
    def follow(self, pods: list[Resource]) -> None: ...


class Watcher:
    """`clock` and `sleep` in seconds. `say` gets one line whenever the state, or the reason to wait, is new."""

    def __init__(
        self,
        cluster: Cluster,
        kind: JobKind,
        spec: TrainingJobSpec,
        uid: str,
        logs: Logs,
        say: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._cluster, self._kind, self._spec, self._uid = cluster, kind, spec, uid
        self._logs, self._say, self._sleep = logs, say, sleep
        self._name, self._namespace = spec.job_name, spec.namespace
        self._job: Resource | None = None
        self.lifecycle = Lifecycle(clock)

    def wait(self) -> None:
        """Returns when the job succeeded; raises `JobFailed` or one of its kinds. That the API server is away fails nothing."""
        version: str | None = None
        failures = 0
        while True:
            try:
                version = self._watch_once(version)
                failures = 0
            except (Gone, Blip) as error:
                version = None
                if isinstance(error, Blip):
                    self._say(f"{error}; trying again")
                self._sleep(RETRY.delay(failures))
                failures += 1
            if self.lifecycle.ended:
                return self._end()
            if self.lifecycle.remaining(self._spec.deadlines) <= 0:
                self._overdue()

    def _watch_once(self, version: str | None) -> str:
        """One list, if there is no version to go on from, and one watch. Returns the version to go on from."""
        if version is None:
            job, version = self._cluster.list_job(self._kind, self._namespace, self._name)
            self._look(job)  # it may have ended before anyone watched
            if self.lifecycle.ended:
                return version
        began = self.lifecycle.clock()
        seconds = max(1, int(min(WINDOW_SECONDS, self.lifecycle.remaining(self._spec.deadlines))))
        for event, seen in self._cluster.watch_job(self._kind, self._namespace, self._name, version, seconds):
            version = str(seen["metadata"]["resourceVersion"])
            if event != "BOOKMARK":
                self._look(None if event == "DELETED" else seen)
            if self.lifecycle.ended:
                return version
        self._look(self._job)  # pods change without the job
        self._sleep(max(0.0, 1.0 - (self.lifecycle.clock() - began)))  # something in between may cut every watch at once
        return version

    def _look(self, job: Resource | None) -> None:
        if job is None or job["metadata"]["uid"] != self._uid or job["metadata"].get("deletionTimestamp"):
            raise DeletedExternally(
                f"job {self._name} was deleted by someone else while it was {self._state()}; submit it again to go on from its last checkpoint"
            )
        self._job = job
        pods = self._cluster.pods(self._namespace, self._name)
        seen = observe(job, pods, self._spec.nodes)
        if self.lifecycle.observe(seen):
            self._say(f"job {self._name} is {seen.state}" + (f": {seen.reason}" if seen.reason else ""))
        self._logs.follow(pods)

    def _state(self) -> str:
        return self.lifecycle.current.state if self.lifecycle.current else "submitted"

    def _end(self) -> None:
        assert self.lifecycle.current is not None
        if self.lifecycle.current.state is State.FAILED:
            pods = self._patiently(lambda: self._cluster.pods(self._namespace, self._name)) or []
            ends = pod_ends(pods)
            raise job_failed(self._name, self.lifecycle.current.reason, ends, {end.pod: self._tail(end.pod) for end in ends})

    def _overdue(self) -> None:
        assert self.lifecycle.current is not None
        state, reason = self.lifecycle.current.state, self.lifecycle.current.reason
        limit = getattr(self._spec.deadlines, state.value)
        self.delete()
        message = (
            f"job {self._name} was {state} for more than {limit} s{': ' + reason if reason else ''}; raise deadlines.{state} or see why"
        )
        raise DeadlineExceeded(message, report(f"Job {self._name} was {state} too long", message, (), {}))

    def delete(self) -> None:
        self._patiently(lambda: self._cluster.delete_job(self._kind, self._namespace, self._name, self._uid))

    def _tail(self, pod: str) -> str:
        return "\n".join(self._patiently(lambda: list(self._cluster.log_lines(self._namespace, pod, tail=TAIL_LINES))) or ["(no log)"])

    def _patiently(self, call: Callable[[], T], attempts: int = 6) -> T | None:
        """For what helps but must not fail the run: None after some attempts."""
        for attempt in range(attempts):
            try:
                return call()
            except Blip:
                self._sleep(RETRY.delay(attempt))
            except LaunchError as error:
                self._say(str(error))
                return None
        return None
