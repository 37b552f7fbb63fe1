"""What the cluster's events say of a job that waits: pods that cannot be created, placed or given their volumes. Pure functions over
parsed JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rolecast.launching.states import JobView, State

Resource = dict[str, Any]
QUOTA = "exceeded quota"


@dataclass(frozen=True, slots=True)
class Warning:
    """`reason`: FailedCreate, FailedScheduling, FailedMount, …; `about`: the object's name; `when` it was last seen."""

    reason: str
    about: str
    message: str
    when: str

    def __str__(self) -> str:
        return f"{self.about}: {self.reason}: {self.message}"

    @property
    def quota(self) -> bool:
        return self.reason == "FailedCreate" and QUOTA in self.message


def warnings_of(job: Resource, events: Iterable[Resource]) -> list[Warning]:
    """Of the job and of what its operator made for it, whose names begin with the job's; the newest of each kind, oldest first."""
    name, created = job["metadata"]["name"], job["metadata"].get("creationTimestamp") or ""
    newest: dict[tuple[str, str], Warning] = {}
    for event in events:
        about, when = event.get("involvedObject", {}).get("name", ""), _last_seen(event)
        if (about != name and not about.startswith(f"{name}-")) or (when and when < created):
            continue
        warning = Warning(event.get("reason", "Warning"), about, " ".join(event.get("message", "").split()), when)
        # Pods that cannot be created have new names each time, or the event is about the job: one line for all of them.
        key = (warning.reason, "" if warning.reason == "FailedCreate" else about)
        if key not in newest or newest[key].when <= when:
            newest[key] = warning
    return sorted(newest.values(), key=lambda warning: warning.when)


def _last_seen(event: Resource) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def with_warnings(view: JobView, warnings: Sequence[Warning], pods: Sequence[Resource], nodes: int) -> JobView:
    """A job waits with the reasons that events give. One whose pods a quota keeps out waits in a queue, whatever it is called."""
    if view.state is not State.PENDING or not warnings:
        return view
    relevant = [warning for warning in warnings if not _over(warning, pods, nodes)]
    told = [str(warning) for warning in relevant if warning.message not in view.reason]
    state = State.QUEUED if any(warning.quota for warning in relevant) else State.PENDING
    return JobView(state, "; ".join(part for part in (view.reason, *told) if part))


def _over(warning: Warning, pods: Sequence[Resource], nodes: int) -> bool:
    """Events stay for an hour, also of pods that were created or placed since."""
    if warning.reason == "FailedCreate":
        return len(pods) >= nodes
    placed = {pod["metadata"]["name"] for pod in pods if pod.get("spec", {}).get("nodeName")}
    return warning.reason == "FailedScheduling" and warning.about in placed
