"""Runs a training job on a cluster: submits it or adopts it, watches it, submits it again if it failed, deletes it if told to stop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rolecast.launching.cluster import Blip, Cluster, Conflict, JobKind, Resource
from rolecast.launching.failure import JobFailed, LaunchError, SpecMismatch
from rolecast.launching.launcher import Outcome, say
from rolecast.launching.learner_pod import SPEC_HASH, Manifest
from rolecast.launching.logs import PodLogs
from rolecast.launching.spec import TrainingJobSpec
from rolecast.launching.watcher import RETRY, Watcher
from rolecast.signals import Stopped, signals_raise

T = TypeVar("T")
SUBMIT_ATTEMPTS = 8
DELETE_SECONDS = 600  # for pods to save, end and vanish, before a job of the same name can be created


class KubernetesLauncher:
    """`clock` and `sleep` in seconds. `say` gets one line of progress or of a pod's log."""

    def __init__(
        self,
        cluster: Cluster,
        kind: JobKind,
        say: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster, self._kind = cluster, kind
        self._say, self._clock, self._sleep = say, clock, sleep

    def run(self, spec: TrainingJobSpec) -> Outcome:
        """Blocks until the stage is done. Raises `JobFailed` after the last attempt, `SpecMismatch` or `LaunchError` before any.

        Interrupted (SIGTERM, Ctrl-C) it deletes the job and leaves with a non-zero exit code.
        """
        with signals_raise():
            try:
                return self._attempts(spec)
            except Stopped:
                self._say(f"interrupted: deleting job {spec.job_name}")
                self._delete_ours(spec)
                raise

    def _attempts(self, spec: TrainingJobSpec) -> Outcome:
        for attempt in range(spec.backoff.retries + 1):
            try:
                return self._once(spec)
            except JobFailed as failure:
                if not failure.retryable or attempt == spec.backoff.retries:
                    raise
                delay = spec.backoff.delay(attempt)
                self._say(f"{failure}; submitting it again in {delay:g} s, from its last checkpoint")
                self._remove(spec)
                self._sleep(delay)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, spec: TrainingJobSpec) -> Outcome:
        job = self._submit(spec)
        logs = PodLogs(self._cluster, spec.namespace, self._say, self._sleep)
        watcher = Watcher(self._cluster, self._kind, spec, job["metadata"]["uid"], logs, self._say, self._clock, self._sleep)
        try:
            watcher.wait()
        finally:
            logs.close()
        seconds = {state.value: round(spent, 1) for state, spent in watcher.lifecycle.seconds.items()}
        return Outcome(spec.job_name, self._kind.plural, seconds)

    def _submit(self, spec: TrainingJobSpec) -> Resource:
        """The job, new or adopted, with its Service beside it."""
        manifest, *services = self._kind.render(spec)
        manifest = _owned_by_this_pod(manifest)
        self._provide_runtime(spec)
        try:
            job = self._insist(lambda: self._cluster.create_job(self._kind, manifest))
            self._say(f"submitted job {spec.job_name} to namespace {spec.namespace}")
        except Conflict:
            job = self._adopt(spec)
        for service in services:
            self._create_service(service, job)
        return job

    def _provide_runtime(self, spec: TrainingJobSpec) -> None:
        """A runtime that is there is used as it is: other jobs refer to it, and an administrator may have changed it."""
        runtime = self._kind.runtime(spec)
        if runtime is None:
            return
        try:
            self._insist(lambda: self._cluster.create_runtime(runtime))
            self._say(f"created TrainingRuntime {spec.runtime.name} in namespace {spec.namespace}")
        except Conflict:
            pass

    def _adopt(self, spec: TrainingJobSpec) -> Resource:
        """A job of our name: this launcher's own after a lost answer, or an earlier launcher's."""
        job, _ = self._insist(lambda: self._cluster.list_job(self._kind, spec.namespace, spec.job_name))
        if job is None:
            raise LaunchError(f"job {spec.job_name} was there a moment ago and is gone; submit again")
        found = job["metadata"].get("annotations", {}).get(SPEC_HASH)
        if found != spec.digest:
            raise SpecMismatch(
                f"job {spec.job_name} in namespace {spec.namespace} has another spec ({found or 'not submitted by rolecast'}, not {spec.digest}); "
                "delete it, or give this job another name"
            )
        self._say(f"adopted job {spec.job_name}, which exists with the same spec")
        return job

    def _create_service(self, manifest: Manifest, job: Resource) -> None:
        """Owned by the job, so that it goes with it. A Service in front of another job's rank 0 is never taken over."""
        manifest["metadata"]["ownerReferences"] = [
            {
                "apiVersion": f"{self._kind.group}/{self._kind.version}",
                "kind": job["kind"],
                "name": job["metadata"]["name"],
                "uid": job["metadata"]["uid"],
                "blockOwnerDeletion": True,
            }
        ]
        try:
            self._insist(lambda: self._cluster.create_service(manifest))
        except Conflict:
            name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
            found = self._insist(lambda: self._cluster.service(namespace, name))
            owners = {owner["uid"] for owner in (found or {}).get("metadata", {}).get("ownerReferences", [])}
            if job["metadata"]["uid"] not in owners:
                raise LaunchError(
                    f"Service {name} in namespace {namespace} belongs to another job; delete it, or give this job another name"
                ) from None

    def _remove(self, spec: TrainingJobSpec) -> None:
        """Deletes the job and waits until its name is free."""
        self._delete_ours(spec)
        deadline = self._clock() + DELETE_SECONDS
        while self._insist(lambda: self._cluster.list_job(self._kind, spec.namespace, spec.job_name))[0] is not None:
            if self._clock() > deadline:
                raise LaunchError(
                    f"job {spec.job_name} is still there {DELETE_SECONDS} s after its deletion; look at its finalizers and pods"
                )
            self._sleep(1.0)

    def _delete_ours(self, spec: TrainingJobSpec) -> None:
        """Deletes the job of this name if its spec is ours."""
        job, _ = self._insist(lambda: self._cluster.list_job(self._kind, spec.namespace, spec.job_name))
        if job is not None and job["metadata"].get("annotations", {}).get(SPEC_HASH) == spec.digest:
            self._insist(lambda: self._cluster.delete_job(self._kind, spec.namespace, spec.job_name, job["metadata"]["uid"]))

    def _insist(self, call: Callable[[], T]) -> T:
        for attempt in range(SUBMIT_ATTEMPTS):
            try:
                return call()
            except Blip as blip:
                if attempt == SUBMIT_ATTEMPTS - 1:
                    raise LaunchError(f"{blip}, {SUBMIT_ATTEMPTS} times; is the API server reachable?") from None
                self._say(f"{blip}; trying again")
                self._sleep(RETRY.delay(attempt))
        raise AssertionError("the last attempt returns or raises")


def _owned_by_this_pod(manifest: Manifest) -> Manifest:
    """A net under SIGTERM: when the step's pod is deleted, the garbage collector deletes the job."""
    name, uid = os.environ.get("ROLECAST_POD_NAME"), os.environ.get("ROLECAST_POD_UID")
    if not name or not uid:
        return manifest
    owner: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [owner]}}
