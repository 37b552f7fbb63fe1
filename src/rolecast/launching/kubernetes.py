"""Runs a training job on a cluster: submits it or adopts it, watches it, submits it again if it failed, and when told to end deletes it
or leaves it to the launcher that comes next."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable

from rolecast.errors import InputError
from rolecast.launching.adoption import Claim, digest_of_config, result_of
from rolecast.launching.cluster import Cluster, JobKind, Resource
from rolecast.launching.failure import ArtifactMissing, JobFailed
from rolecast.launching.launcher import Outcome, say
from rolecast.launching.learner_pod import check_reachable
from rolecast.launching.logs import PodLogs
from rolecast.launching.pace import Pace
from rolecast.launching.patience import RETRY, Patience
from rolecast.launching.spec import TrainingJobSpec
from rolecast.launching.watcher import Watcher
from rolecast.launching.workflow import Workflow, own_workflow
from rolecast.ports import Store
from rolecast.signals import Stopped, signals_raise
from rolecast.store.uri import open_store
from rolecast.store.watched import LEASE_SECONDS, Lease, lease_of

WORKFLOW_ATTEMPTS = 4  # to read it, within the grace of a step's pod


class KubernetesLauncher:
    """`clock` and `sleep` in seconds. `say` gets one line of progress or of a pod's log. `workflow`: whose step this is."""

    def __init__(
        self,
        cluster: Cluster,
        kind: JobKind,
        say: Callable[[str], None] = say,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        store: Callable[[str], Store] = open_store,
        workflow: Workflow | None = None,
    ) -> None:
        self._cluster, self._kind, self._say = cluster, kind, say
        self._patience = Patience(say, clock, sleep)
        self._store = store
        self._workflow = own_workflow() if workflow is None else workflow
        self._name = f"{os.uname().nodename}-{uuid.uuid4().hex[:8]}"
        self._logs: PodLogs | None = None

    def run(self, spec: TrainingJobSpec) -> Outcome:
        """Blocks until the stage is done and its result is in the store. Raises `JobFailed` after the last attempt, `SpecMismatch` or
        `LaunchError` before any.

        Told to end (SIGTERM, Ctrl-C) it leaves with a non-zero exit code; the job stays if this was a step that will run again.
        """
        check_reachable(spec)
        with signals_raise():
            store = self._store(spec.run)
            config = store.get("run.json")
            if config is None:
                raise InputError(f"{spec.run} is not a run: it has no run.json; make it with `rolecast run create`")
            lease = Lease(store, lease_of(spec.job_name), self._name)
            owners = self._patience.courtesy(lambda: self._workflow.owner(self._cluster, spec.namespace)) or []
            claim = Claim(self._cluster, self._kind, spec, store, self._name, owners, digest_of_config(config), self._patience)
            with lease.held():
                try:
                    outcome = self._attempts(claim)
                except Stopped:
                    self._told_to_end(claim, lease)  # first of all: there is little time, and reading logs takes some of it
                    self._close_logs()
                    raise
                except JobFailed:
                    lease.give_up()
                    raise
            lease.give_up()
            return outcome

    def _attempts(self, claim: Claim) -> Outcome:
        """Losing a pod to a drain or an eviction is no failure of the job, and uses up none of its retries."""
        backoff, failures, losses = claim.spec.backoff, 0, 0
        while True:
            job = claim.take()
            try:
                return self._watch(claim, job)
            except JobFailed as failure:
                claim.tidy(job)
                if not failure.retryable or (not failure.lost and failures == backoff.retries):
                    raise
                failures, losses = (failures, losses + 1) if failure.lost else (failures + 1, losses)
                delay = backoff.delay(failures + losses - 1)
                self._say(f"{failure}; submitting it again in {delay:g} s, from its last checkpoint")
                claim.remove(job)
                self._patience.sleep(delay)

    def _watch(self, claim: Claim, job: Resource) -> Outcome:
        spec, pace = claim.spec, Pace(claim.spec.job_name, self._say, self._patience.clock)
        logs = self._logs = PodLogs(self._cluster, spec.namespace, self._say, self._patience.sleep, pace.read)
        watcher = Watcher(self._cluster, self._kind, spec, job["metadata"]["uid"], logs, self._patience, pace.tell)
        try:
            watcher.wait()
        except Exception:
            self._close_logs()
            raise
        self._close_logs()
        if not claim.made():
            raise ArtifactMissing(
                f"job {spec.job_name} succeeded, but {spec.run} has no committed {result_of(spec)}; see its log, and whether the job wrote to another store"
            )
        claim.tidy(job)
        seconds = {state.value: round(spent, 1) for state, spent in watcher.lifecycle.seconds.items()}
        return Outcome(spec.job_name, self._kind.plural, seconds)

    def _told_to_end(self, claim: Claim, lease: Lease) -> None:
        name, wanted = claim.spec.job_name, self._wanted()
        if wanted:
            self._say(f"told to end, and Workflow {self._workflow.name} goes on: job {name} stays, and the step that runs again adopts it")
        elif wanted is None:
            self._say(
                f"told to end, and Workflow {self._workflow.name} cannot be read: job {name} stays, and ends in "
                f"{LEASE_SECONDS / 60:.0f} minutes unless a launcher watches it again"
            )
        elif claim.release():
            self._say(f"told to end: deleted job {name}")
            lease.give_up()
        else:
            self._say(f"told to end: job {name} belongs to another launcher by now, and stays")

    def _wanted(self) -> bool | None:
        for attempt in range(WORKFLOW_ATTEMPTS):
            wanted = self._workflow.wants_its_jobs(self._cluster)
            if wanted is not None:
                return wanted
            self._patience.sleep(RETRY.delay(attempt))
        return None

    def _close_logs(self) -> None:
        if self._logs is not None:
            self._logs.close()
