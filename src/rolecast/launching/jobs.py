"""Training jobs that are on a cluster, by their run or their name: for people, beside the launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rolecast.errors import InputError
from rolecast.launching.api_errors import Blip
from rolecast.launching.cluster import KINDS, Cluster, JobKind, Resource
from rolecast.launching.failure import Denied
from rolecast.launching.learner_pod import RUN
from rolecast.launching.logs import PodLogs
from rolecast.launching.patience import Patience
from rolecast.launching.service import fronts
from rolecast.launching.spec import COORDINATOR
from rolecast.launching.states import State
from rolecast.launching.status import dying, ended, observe

WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Job:
    kind: JobKind
    resource: Resource

    @property
    def name(self) -> str:
        return str(self.resource["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.resource["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.resource["metadata"]["uid"])

    @property
    def live(self) -> bool:
        return ended(self.resource) is None

    @property
    def run(self) -> str:
        """Its address, or of a job of an older release the last part of it."""
        metadata = self.resource["metadata"]
        return str((metadata.get("annotations") or {}).get(RUN) or (metadata.get("labels") or {}).get("rolecast.dev/run", ""))

    @property
    def stage(self) -> str:
        return str((self.resource["metadata"].get("labels") or {}).get("rolecast.dev/stage", ""))


def find_jobs(cluster: Cluster, patience: Patience, namespace: str, wanted: str = "") -> list[Job]:
    """Oldest first. `wanted`: a job's name, a run's address or the last part of it; all jobs without it."""
    found = [
        Job(kind, resource)
        for kind in KINDS.values()
        for resource in _listed(cluster, patience, kind, namespace)
    ]  # fmt: skip
    chosen = [job for job in found if not wanted or wanted.rstrip("/") in (job.name, job.run, job.run.rpartition("/")[2])]
    return sorted(chosen, key=lambda job: (job.resource["metadata"].get("creationTimestamp", ""), job.name))


def _listed(cluster: Cluster, patience: Patience, kind: JobKind, namespace: str) -> list[Resource]:
    try:
        return patience.insist(lambda: cluster.list_jobs(kind, namespace))
    except Denied as error:
        if error.status == 404:  # the operator of this kind is not installed
            return []
        raise


def one_job(cluster: Cluster, patience: Patience, namespace: str, wanted: str, stage: str = "") -> Job:
    """The one job of a name, or of a run and a stage. A run's only live job is meant where there are several."""
    jobs = [job for job in find_jobs(cluster, patience, namespace, wanted) if not stage or job.stage == stage]
    if len(jobs) > 1 and len(live := [job for job in jobs if job.live]) == 1:
        jobs = live
    if not jobs:
        raise InputError(f"no job of {wanted} in namespace {namespace}; see `rolecast job list --namespace {namespace}`")
    if len(jobs) > 1:
        raise InputError(f"{wanted} has the jobs {', '.join(job.name for job in jobs)}; name one of them, or give --stage")
    return jobs[0]


def cancel(cluster: Cluster, patience: Patience, job: Job) -> None:
    """Deletes a live job: its pods are told to end, and save what they trained. Blocks until they have."""
    if not job.live:
        raise InputError(f"job {job.name} has ended; `rolecast job delete {job.name}` deletes it")
    _delete(cluster, patience, job)


def delete(cluster: Cluster, patience: Patience, job: Job) -> None:
    """Deletes what is left of a job that ended."""
    if job.live:
        raise InputError(f"job {job.name} has not ended; `rolecast job cancel {job.name}` ends it")
    _delete(cluster, patience, job)


def _delete(cluster: Cluster, patience: Patience, job: Job) -> None:
    patience.insist(lambda: cluster.delete_job(job.kind, job.namespace, job.name, job.uid))
    deadline = patience.clock() + WAIT_SECONDS
    while (found := patience.insist(lambda: cluster.list_job(job.kind, job.namespace, job.name)[0])) and found["metadata"][
        "uid"
    ] == job.uid:
        if patience.clock() > deadline:
            raise InputError(f"job {job.name} is still there after {WAIT_SECONDS:.0f} s; look at its finalizers and pods")
        patience.sleep(1.0)
    if found is None:  # or the Service is the new job's
        _delete_service(cluster, patience, job)


def _delete_service(cluster: Cluster, patience: Patience, job: Job) -> None:
    """The coordinator's, which was applied by hand beside its job; a launcher's goes with its owner. Another's of the name is left alone."""
    name = job.name + COORDINATOR
    found = patience.insist(lambda: cluster.service(job.namespace, name))
    if found is not None and fronts(found, job.resource):
        patience.insist(lambda: cluster.delete_service(job.namespace, name, found["metadata"]["uid"]))


def print_logs(cluster: Cluster, patience: Patience, job: Job, follow: bool) -> None:
    """What the job's pods say, with their names before it; with `follow` until the job has ended."""
    logs = PodLogs(cluster, job.namespace, patience.say, patience.sleep)
    try:
        while True:
            pods = patience.insist(lambda: cluster.pods(job.namespace, job.name))
            logs.follow(pods)
            found = patience.insist(lambda: cluster.list_job(job.kind, job.namespace, job.name)[0])
            if not follow or found is None or found["metadata"]["uid"] != job.uid or ended(found) is not None:
                return
            patience.sleep(2.0)
    finally:
        logs.close()


def table(cluster: Cluster, jobs: Sequence[Job], now: datetime) -> list[str]:
    """A line for each job, under a head."""
    rows = [("JOB", "STAGE", "STATE", "AGE", "RUN"), *(_row(cluster, job, now) for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows]


def _row(cluster: Cluster, job: Job, now: datetime) -> tuple[str, str, str, str, str]:
    return job.name, job.stage, _state(cluster, job), _age(job.resource["metadata"].get("creationTimestamp", ""), now), job.run


def _state(cluster: Cluster, job: Job) -> str:
    if dying(job.resource):
        return "deleting"
    if (end := ended(job.resource)) is not None:
        return end.value
    try:
        pods = cluster.pods(job.namespace, job.name)
    except Blip:
        return "live"
    seen = observe(job.resource, pods, max(1, len(pods)))
    return seen.state.value if pods or seen.state is State.QUEUED else State.PENDING.value


def _age(created: str, now: datetime) -> str:
    if not created:
        return ""
    minutes = int((now - datetime.fromisoformat(created)).total_seconds() // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} d"
