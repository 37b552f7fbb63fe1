"""Watches one job until it ends: list, then watch, list again when the history is gone or the connection was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rolecast.launching.api_errors import Blip, Gone
from rolecast.launching.cluster import Cluster, JobKind, Resource
from rolecast.launching.events import Warning, warnings_of, with_warnings
from rolecast.launching.failure import DeadlineExceeded, DeletedExternally, LaunchError, job_failed, report
from rolecast.launching.patience import RETRY, Patience
from rolecast.launching.spec import TrainingJobSpec
from rolecast.launching.states import JobView, Lifecycle, State
from rolecast.launching.status import dying, observe, phase, pod_ends

WINDOW_SECONDS = 20  # pods change without the job: at least this often they are looked at
EVENT_SECONDS = 10.0  # between two looks at the events of a job that waits
REMIND_SECONDS = 300.0  # after which a trouble of the API server that goes on is told again
TAKEN_SECONDS = 900.0  # in which a job's failure is put down to the pod that was taken from it
TAIL_LINES = 40


class Logs(Protocol):
    def follow(self, pods: list[Resource]) -> None: ...


class Watcher:
    """`tell` is called now and then, to say how far the job is. A line is said whenever the state, or the reason to wait, is new."""

    def __init__(
        self,
        cluster: Cluster,
        kind: JobKind,
        spec: TrainingJobSpec,
        uid: str,
        logs: Logs,
        patience: Patience,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster, self._kind, self._spec, self._uid = cluster, kind, spec, uid
        self._logs, self._patience, self._tell = logs, patience, tell
        self._name, self._namespace = spec.job_name, spec.namespace
        self._job: Resource | None = None
        self._started: dict[str, str] = {}  # uids of pods that have run, by name
        self._taken_at = float("-inf")  # when a pod was last taken from the job
        self._events: list[Warning] = []
        self._events_at = self._trouble_at = float("-inf")
        self._trouble = ""
        self.lifecycle = Lifecycle(patience.clock)

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
                    self._say_trouble(str(error))
                self._patience.sleep(RETRY.delay(failures))
                failures += 1
            if self.lifecycle.ended:
                return self._end()
            if self.lifecycle.remaining(self._spec.deadlines) <= 0:
                self._overdue()

    def _say_trouble(self, trouble: str) -> None:
        """Once, and again after a while: an API server may be away for hours."""
        now = self._patience.clock()
        if trouble != self._trouble or now - self._trouble_at >= REMIND_SECONDS:
            self._patience.say(f"{trouble}; trying again")
            self._trouble, self._trouble_at = trouble, now

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
        self._patience.sleep(max(0.0, 1.0 - (self.lifecycle.clock() - began)))  # something in between may cut every watch at once
        return version

    def _look(self, job: Resource | None) -> None:
        if job is None or job["metadata"]["uid"] != self._uid or dying(job):
            raise DeletedExternally(
                f"job {self._name} was deleted by someone else while it was {self._state()}; submit it again to go on from its last checkpoint"
            )
        self._job = job
        pods = self._cluster.pods(self._namespace, self._name)
        seen = observe(job, pods, self._spec.nodes)
        if seen.state is not State.FAILED:  # then the operator deletes the others, by which no pod is lost
            self._note_taken(pods)
        if seen.state is State.PENDING:
            seen = self._with_events(job, seen, pods)
        if self.lifecycle.observe(seen):
            self._patience.say(f"job {self._name} is {seen.state}" + (f": {seen.reason}" if seen.reason else ""))
        self._logs.follow(pods)
        self._tell()

    def _note_taken(self, pods: list[Resource]) -> None:
        """A pod that vanishes, is deleted, or has a successor of its name while its job goes on was taken away, as a drain does."""
        present = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
        if any(dying(pod) for pod in pods) or any(present.get(name) != uid for name, uid in self._started.items()):
            self._taken_at = self._patience.clock()
        self._started = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if phase(pod) != "Pending"}

    def _with_events(self, job: Resource, seen: JobView, pods: list[Resource]) -> JobView:
        now = self._patience.clock()
        if now - self._events_at >= EVENT_SECONDS:
            self._events_at = now
            try:
                self._events = warnings_of(job, self._cluster.warnings(self._namespace))
            except Blip:
                pass
            except LaunchError as error:  # no right to read them: the state is told without
                self._say_trouble(str(error))
        return with_warnings(seen, self._events, pods, self._spec.nodes)

    def _state(self) -> str:
        return self.lifecycle.current.state if self.lifecycle.current else "submitted"

    def _end(self) -> None:
        assert self.lifecycle.current is not None
        if self.lifecycle.current.state is State.FAILED:
            pods = self._patience.courtesy(lambda: self._cluster.pods(self._namespace, self._name)) or []
            ends = pod_ends(pods)
            tails = {end.pod: self._tail(end.pod) for end in ends}
            taken = self._patience.clock() - self._taken_at < TAKEN_SECONDS
            raise job_failed(self._name, self.lifecycle.current.reason, ends, tails, taken)

    def _overdue(self) -> None:
        assert self.lifecycle.current is not None
        state, reason = self.lifecycle.current.state, self.lifecycle.current.reason
        limit = getattr(self._spec.deadlines, state.value)
        self._patience.courtesy(lambda: self._cluster.delete_job(self._kind, self._namespace, self._name, self._uid))
        message = (
            f"job {self._name} was {state} for more than {limit} s{': ' + reason if reason else ''}; raise deadlines.{state} or see why"
        )
        raise DeadlineExceeded(message, report(f"Job {self._name} was {state} too long", message, (), {}))

    def _tail(self, pod: str) -> str:
        lines = self._patience.courtesy(lambda: list(self._cluster.log_lines(self._namespace, pod, tail=TAIL_LINES)))
        return "\n".join(lines or ["(no log)"])
