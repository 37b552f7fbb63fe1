"""Reads a job's state off what the API server returns. Pure functions over parsed JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rolecast.launching.states import JobView, State

Resource = dict[str, Any]

# Both operators' words: training operator v1 says Succeeded, Trainer v2 says Complete.
SUCCEEDED = ("Succeeded", "Complete")
WAITING_IS_NORMAL = ("ContainerCreating", "PodInitializing")


def observe(job: Resource, pods: Sequence[Resource], nodes: int) -> JobView:
    """Conditions that end a job are read first: they hold whatever its pods look like by then."""
    conditions = {
        condition["type"]: condition for condition in job.get("status", {}).get("conditions") or [] if condition["status"] == "True"
    }
    for name in SUCCEEDED:
        if name in conditions:
            return JobView(State.SUCCEEDED, _text(conditions[name]))
    if "Failed" in conditions:
        return JobView(State.FAILED, _text(conditions["Failed"]))
    if _suspended(job) or "Suspended" in conditions:
        queue = job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name")
        return JobView(State.QUEUED, f"waits for queue {queue}" if queue else "suspended, and no queue will resume it")
    started = [pod for pod in pods if phase(pod) in ("Running", "Succeeded", "Failed")]
    if len(started) >= nodes:
        return JobView(State.RUNNING)
    return JobView(State.PENDING, "; ".join(pending_reasons(pods)) or f"{len(started)} of {nodes} pods run")


def pending_reasons(pods: Sequence[Resource]) -> list[str]:
    """Why pods do not run: no node fits, the image cannot be pulled, a ConfigMap or Secret is missing."""
    return [f"{pod['metadata']['name']}: {reason}" for pod in pods if phase(pod) == "Pending" for reason in _pod_reasons(pod)]


def _pod_reasons(pod: Resource) -> list[str]:
    status = pod.get("status", {})
    reasons = [
        f"{condition.get('reason', 'Unschedulable')}: {condition.get('message', '')}".rstrip(": ")
        for condition in status.get("conditions") or []
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in WAITING_IS_NORMAL:
            reasons.append(f"{waiting.get('reason', 'Waiting')}: {waiting.get('message', '')}".rstrip(": "))
    return reasons


def _suspended(job: Resource) -> bool:
    spec = job.get("spec", {})
    return bool(spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"))


def ended(job: Resource) -> State | None:
    """How a job ended, None while it has not."""
    state = observe(job, (), 1).state
    return state if state in (State.SUCCEEDED, State.FAILED) else None


def dying(job: Resource) -> bool:
    return bool(job["metadata"].get("deletionTimestamp"))


def _text(condition: Resource) -> str:
    return ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)


def phase(pod: Resource) -> str:
    return str(pod.get("status", {}).get("phase", "Unknown"))


# Reasons of a pod's failure that say what happened to its node, and nothing of the pod.
TAKEN = (
    "Evicted",
    "Preempting",
    "Preempted",
    "NodeLost",
    "NodeShutdown",
    "Shutdown",
    "Terminated",
    "NodeAffinity",
    "UnexpectedAdmissionError",
)


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How a pod ended. `exit_code` is None if no container of it ever ran, as after an eviction. `lost`: it was taken away, by a drain,
    an eviction or the end of its node, and did nothing wrong."""

    pod: str
    reason: str  # OOMKilled, Error, Evicted, Preempting …
    message: str
    exit_code: int | None
    finished: str = ""
    lost: bool = False


def pod_ends(pods: Sequence[Resource]) -> list[PodEnd]:
    """Pods that failed, the first to fail first: the others mostly follow because a peer is gone."""
    ends = [_pod_end(pod) for pod in pods if phase(pod) == "Failed"]
    return sorted(ends, key=lambda end: (end.finished or "~", not end.message, end.pod))


def _pod_end(pod: Resource) -> PodEnd:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        ended = container.get("state", {}).get("terminated")
        if ended and ended.get("exitCode"):
            reason, message = status.get("reason") or ended.get("reason", "Error"), status.get("message") or ended.get("message", "")
            lost = ended.get("reason") != "OOMKilled" and taken_away(pod)
            return PodEnd(name, reason, message, ended["exitCode"], ended.get("finishedAt", ""), lost)
    return PodEnd(name, status.get("reason") or "Failed", status.get("message", ""), None, lost=taken_away(pod))


def taken_away(pod: Resource) -> bool:
    """Whether a pod ends because of its node. One that used more than its own limits ends by its own fault."""
    status = pod.get("status", {})
    if "exceed" in status.get("message", "") and "limit" in status.get("message", ""):
        return False
    disrupted = any(
        condition["type"] == "DisruptionTarget" and condition["status"] == "True" for condition in status.get("conditions") or []
    )
    return disrupted or status.get("reason") in TAKEN or bool(pod["metadata"].get("deletionTimestamp"))
