"""Whose a job is: makes the job of a name this launcher's, by creating it or by taking over a live one of the same spec.

A job that ended is never taken for the one that is asked for: it is deleted, and one that is being deleted is waited for.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field

from rolecast.launching.api_errors import Exists, Later
from rolecast.launching.cluster import Cluster, JobKind, Resource
from rolecast.launching.failure import DeadlineExceeded, LaunchError, SpecMismatch, Unseen
from rolecast.launching.learner_pod import SPEC_HASH, Manifest
from rolecast.launching.patience import RETRY, Patience
from rolecast.launching.service import Front
from rolecast.launching.spec import Backoff, TrainingJobSpec
from rolecast.launching.states import State
from rolecast.launching.status import dying, ended, observe
from rolecast.ports import Store
from rolecast.store.watched import LEASE_KEY, lease_of

CONFIG_HASH = "rolecast.dev/config-hash"  # of the run's run.json, as it was when the job was submitted
LAUNCHER = "rolecast.dev/watched-by"  # which launcher the job belongs to: the last one that adopted it
DELETE_SECONDS = 600  # for pods to save, end and vanish, before a job of the same name can be created
REFUSED = Backoff(base=5.0, limit=60.0)
UNSEEN_ATTEMPTS = 6  # in a quarter of a minute


def result_of(spec: TrainingJobSpec) -> str:
    """The key, below the run, of what the stage ends with."""
    return f"{spec.stage}/{'questions' if spec.kind == 'rollout' else 'model'}"


def digest_of_config(run_json: bytes) -> str:
    return hashlib.sha256(run_json).hexdigest()[:32]


@dataclass(slots=True)
class Claim:
    """One launcher's claim on the job of a spec. `launcher` tells it from others, `owners` are references for the job's metadata,
    `config` is the digest of the run's config."""

    cluster: Cluster
    kind: JobKind
    spec: TrainingJobSpec
    store: Store
    launcher: str
    owners: list[Resource]
    config: str
    patience: Patience
    _submitted: bool = False
    _front: Front = field(init=False)

    def __post_init__(self) -> None:
        self._front = Front(self.cluster, self.kind, self.patience)

    def take(self) -> Resource:
        """The job, new or adopted, with its Service; or one that succeeded and whose result is committed. On an error nothing that is
        new remains."""
        try:
            return self._take()
        except Exception:
            self._undo()
            raise

    def _take(self) -> Resource:
        deadline, refused = self.patience.clock() + self.spec.deadlines.queued, 0
        while True:
            try:
                job = self._present()
                return self._create() if job is None else job
            except Exists:  # a lost answer, or another launcher was faster: look who it is
                self.patience.sleep(1.0)
            except Later as refusal:
                if self.patience.clock() >= deadline:
                    raise DeadlineExceeded(
                        f"job {self.spec.job_name} was refused for {self.spec.deadlines.queued} s: {refusal}; "
                        "raise the quota or deadlines.queued"
                    ) from None
                delay = REFUSED.delay(refused)
                self.patience.say(f"{refusal}; trying again in {delay:g} s")
                self.patience.sleep(delay)
                refused += 1

    def _present(self) -> Resource | None:
        """The job of our name, if it is to be had; None if one is to be created."""
        job = self.find()
        if job is None:
            return None
        name = self.spec.job_name
        if dying(job):
            self.patience.say(f"job {name} of before is being deleted: waiting for its end")
            self._await_gone(job)
            return None
        if SPEC_HASH not in (job["metadata"].get("annotations") or {}):
            raise SpecMismatch(
                f"job {name} in namespace {self.spec.namespace} was not submitted by rolecast; delete it, or give this job another name"
            )
        if (end := ended(job)) is not None:
            if end is State.SUCCEEDED and self._same(job) and self.made():
                self.patience.say(f"job {name} has succeeded before, and {self.spec.run}/{result_of(self.spec)} is committed")
                return job
            reason = observe(job, (), 1).reason
            self.patience.say(f"job {name} of before had {end}{f' ({reason})' if reason else ''}: deleting it")
            self.remove(job)
            return None
        if not self._same(job):
            raise SpecMismatch(
                f"job {name} in namespace {self.spec.namespace} runs with another spec or another config of the run; "
                f"wait for it, end it with `rolecast job cancel {name}`, or give this job another name"
            )
        return self._adopt(job)

    def _same(self, job: Resource) -> bool:
        """A job that was applied by hand does not say which config the run had."""
        found = job["metadata"].get("annotations") or {}
        return found.get(SPEC_HASH) == self.spec.digest and found.get(CONFIG_HASH, self.config) == self.config

    def made(self) -> bool:
        """Whether what the stage ends with is committed in the run's store."""
        return self.store.committed(result_of(self.spec))

    def _adopt(self, job: Resource) -> Resource:
        """The job becomes ours with its Service: it no longer goes with the Workflow that made it, or with that one's launcher."""
        name, namespace, uid = self.spec.job_name, self.spec.namespace, job["metadata"]["uid"]
        if not self.ours(job):
            self._submitted = False
        changes = {"ownerReferences": self.owners, "annotations": {LAUNCHER: self.launcher}}
        job = self.patience.insist(lambda: self.cluster.patch_job(self.kind, namespace, name, uid, changes))
        for service in self._services():
            self._front.secure(service, job)
            self._front.give(service, job)
        self.patience.say(f"adopted job {name}, which exists with the same spec")
        return job

    def _create(self) -> Resource:
        """The Service comes first: a job whose rank 0 nobody can reach would only wait."""
        manifest = self._manifest()
        self._provide_runtime()
        # A launcher that may not see pods finds out before there is a job that nobody would watch.
        self.patience.insist(lambda: self.cluster.pods(self.spec.namespace, self.spec.job_name))
        services = self._services()
        for service in services:
            self._front.secure(service)
        self._submitted = True
        job = self._submit(manifest)
        for service in services:
            self._front.give(service, job)
        self.patience.say(f"submitted job {self.spec.job_name} to namespace {self.spec.namespace}")
        return job

    def _submit(self, manifest: Manifest) -> Resource:
        """Tries again for some seconds where the operator has not seen yet the runtime that was made for the job."""
        for attempt in range(UNSEEN_ATTEMPTS):
            try:
                return self.patience.insist(lambda: self.cluster.create_job(self.kind, manifest))
            except Unseen:
                if self.kind.runtime(self.spec) is None or attempt == UNSEEN_ATTEMPTS - 1:
                    raise
                self.patience.sleep(RETRY.delay(attempt))
        raise AssertionError("the last attempt returns or raises")

    def _manifest(self) -> Manifest:
        """As it is rendered, with what only a launched job has: its owner, its launcher, and a lease that ends it unless it is renewed."""
        manifest = copy.deepcopy(self.kind.render(self.spec)[0])
        metadata = manifest["metadata"]
        metadata["annotations"] = {**metadata["annotations"], CONFIG_HASH: self.config, LAUNCHER: self.launcher}
        if self.owners:
            metadata["ownerReferences"] = self.owners
        for environment in self.kind.environments(manifest):
            environment.append({"name": LEASE_KEY, "value": lease_of(self.spec.job_name)})
        return manifest

    def _services(self) -> list[Manifest]:
        return self.kind.render(self.spec)[1:]

    def _provide_runtime(self) -> None:
        """A runtime that is there is used as it is: other jobs refer to it, and an administrator may have changed it."""
        runtime = self.kind.runtime(self.spec)
        if runtime is None:
            return
        try:
            self.patience.insist(lambda: self.cluster.create_runtime(runtime))
            self.patience.say(f"created TrainingRuntime {self.spec.runtime.name} in namespace {self.spec.namespace}")
        except Exists:
            pass

    def find(self) -> Resource | None:
        return self.patience.insist(lambda: self.cluster.list_job(self.kind, self.spec.namespace, self.spec.job_name)[0])

    def ours(self, job: Resource) -> bool:
        return (job["metadata"].get("annotations") or {}).get(LAUNCHER) == self.launcher

    def release(self) -> bool:
        """Deletes the job if it is still ours; whether there is none of ours any more to watch. Another launcher's stays."""
        job = self.find()
        if job is not None and not self.ours(job):
            return False
        if job is not None:
            self._delete(job)
        self._front.undo()  # of a job that was not created yet
        return True

    def remove(self, job: Resource) -> None:
        """Deletes the job and waits until its name is free."""
        self._delete(job)
        self._await_gone(job)

    def tidy(self, job: Resource) -> None:
        """After the job's end. The job itself stays for a while, to be looked at."""
        for service in self._services():
            self._front.remove(service, job)

    def _delete(self, job: Resource) -> None:
        uid = job["metadata"]["uid"]
        self.patience.insist(lambda: self.cluster.delete_job(self.kind, self.spec.namespace, self.spec.job_name, uid))

    def _await_gone(self, job: Resource) -> None:
        deadline = self.patience.clock() + DELETE_SECONDS
        while (found := self.find()) is not None and found["metadata"]["uid"] == job["metadata"]["uid"]:
            if self.patience.clock() > deadline:
                raise LaunchError(
                    f"job {self.spec.job_name} is still there {DELETE_SECONDS} s after its deletion; look at its finalizers and pods"
                )
            self.patience.sleep(1.0)

    def _undo(self) -> None:
        """After an error: our own new job, if there is one, and Services that are new."""
        if self._submitted:
            job = self.patience.courtesy(lambda: self.cluster.list_job(self.kind, self.spec.namespace, self.spec.job_name)[0])
            if job is not None and self.ours(job):
                self.patience.courtesy(
                    lambda: self.cluster.delete_job(self.kind, self.spec.namespace, self.spec.job_name, job["metadata"]["uid"])
                )
        self._front.undo()
