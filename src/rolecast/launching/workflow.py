"""The Argo Workflow whose step this launcher is: the owner of its jobs, and whether it still wants them when the step is told to end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rolecast.launching.api_errors import Blip
from rolecast.launching.cluster import WORKFLOWS, Cluster, Resource
from rolecast.launching.failure import LaunchError

WORKFLOW = "ROLECAST_WORKFLOW"  # a step has it from its pod's label workflows.argoproj.io/workflow
NAMESPACE = "ROLECAST_NAMESPACE"
ENDED = ("Succeeded", "Failed", "Error")


@dataclass(frozen=True, slots=True)
class Workflow:
    """`name` is empty where the launcher is no step of a Workflow: then nobody starts it again after it was told to end."""

    name: str = ""
    namespace: str = ""

    def owner(self, cluster: Cluster, namespace: str) -> list[Resource]:
        """References for a job's metadata. The garbage collector takes an owner in another namespace for one that is gone.

        Raises `Blip`; a Workflow that cannot be read owns nothing.
        """
        if not self.name or namespace != self.namespace:
            return []
        found = cluster.workflow(self.namespace, self.name)
        if found is None:
            return []
        return [{"apiVersion": "/".join(WORKFLOWS[:2]), "kind": "Workflow", "name": self.name, "uid": found["metadata"]["uid"]}]

    def wants_its_jobs(self, cluster: Cluster) -> bool | None:
        """False if it was shut down or is gone; True if the step was only moved, and will run again; None if nobody can tell."""
        if not self.name:
            return False
        try:
            found = cluster.workflow(self.namespace, self.name)
        except (Blip, LaunchError):
            return None
        return found is not None and not shut_down(found)


def own_workflow(environ: Mapping[str, str] = os.environ) -> Workflow:
    name, namespace = environ.get(WORKFLOW, ""), environ.get(NAMESPACE, "")
    return Workflow(name, namespace) if name and namespace else Workflow()


def shut_down(workflow: Resource, now: datetime | None = None) -> bool:
    """Argo's `stop` and `terminate` set spec.shutdown. Kubeflow Pipelines terminates a run by a deadline of 0 seconds, and deletes one
    by deleting its Workflow."""
    spec, status = workflow.get("spec", {}), workflow.get("status", {})
    if workflow["metadata"].get("deletionTimestamp") or spec.get("shutdown") or status.get("phase") in ENDED:
        return True
    return _overdue(spec.get("activeDeadlineSeconds"), status.get("startedAt"), now or datetime.now(UTC))


def _overdue(deadline: Any, started: str | None, now: datetime) -> bool:
    if deadline is None:
        return False
    if deadline <= 0:
        return True
    return bool(started) and (now - datetime.fromisoformat(str(started))).total_seconds() >= deadline
