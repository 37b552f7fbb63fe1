"""What events say of a job that waits reaches its launcher's log within a minute."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_stage import Stage
from fake_api import FakeApi, Fault

from rolecast.launching.events import Warning, warnings_of, with_warnings
from rolecast.launching.failure import DeadlineExceeded
from rolecast.launching.states import JobView, State

SECURITY = 'Error creating: pods "x-worker-0" is forbidden: violates PodSecurity "restricted:latest"'
QUOTA = 'Error creating: pods "x-worker-0" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=8'


@pytest.mark.parametrize(
    ("reason", "about", "message"),
    [
        ("FailedCreate", "", SECURITY),  # on the job itself
        ("FailedCreate", "-node-0", SECURITY),  # on the Job that JobSet makes for a TrainJob
        ("FailedScheduling", "-master-0", "0/1 nodes are available: 1 Insufficient cpu."),
        ("FailedMount", "-master-0", 'MountVolume.SetUp failed for volume "cache": configmap "x" not found'),
    ],
)
def test_a_warning_is_reported_and_stands_in_the_error(api: FakeApi, reason: str, about: str, message: str) -> None:
    stage = Stage(api, nodes=2)
    stage.then(stage.pod("Running"), stage.warning(reason, message, about))
    stage.then(lambda: None)
    began = stage.clock.now
    heard: list[float] = []
    stage.launcher._patience = type(stage.launcher._patience)(
        lambda line: heard.append(stage.clock.now) if message in line else None, stage.clock, stage.clock.sleep
    )
    for _ in range(60):
        stage.then(stage.later(2))
    with pytest.raises(DeadlineExceeded, match="was pending") as caught:
        stage.launcher.run(stage.spec)
    assert message in str(caught.value)
    assert heard[0] - began <= 60


def test_pods_that_a_quota_keeps_out_wait_under_the_deadline_of_the_queue(api: FakeApi) -> None:
    stage = Stage(api, nodes=2)
    stage.then(stage.pod("Running"), stage.warning("FailedCreate", QUOTA))
    stage.then(stage.later(60))
    stage.then(stage.later(150))  # beyond the 100 s of pending
    stage.then(stage.pod("Running", "worker-0"))
    stage.then(stage.condition("Succeeded"))
    seconds = stage.launcher.run(stage.spec).seconds
    assert seconds["queued"] > 100
    assert any("is queued" in line and "exceeded quota: team" in line for line in stage.said)


@pytest.mark.parametrize("status", [403, 503])
def test_events_that_cannot_be_read_stop_nothing(api: FakeApi, status: int) -> None:
    stage = Stage(api)
    api.faults.append(Fault(status, 99, "GET", "/events"))
    stage.then(stage.pod("Running"))
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)


def event(name: str, reason: str = "FailedMount", message: str = "m", when: str = "2026-01-02T00:00:00Z") -> dict[str, Any]:
    return {"involvedObject": {"name": name}, "reason": reason, "message": message, "lastTimestamp": when}


JOB = {"metadata": {"name": "a-job", "creationTimestamp": "2026-01-01T00:00:00Z"}}


def test_events_are_of_the_job_and_of_what_is_named_after_it() -> None:
    events = [event("a-job-master-0"), event("a-jobs-master-0"), event("other"), event("a-job-worker-0", when="2025-12-31T00:00:00Z")]
    assert [warning.about for warning in warnings_of(JOB, events)] == ["a-job-master-0"]


def test_of_each_kind_the_newest_event_is_told() -> None:
    events = [event("a-job-master-0", message="new", when="2026-01-03T00:00:00Z"), event("a-job-master-0", message="old")]
    assert [warning.message for warning in warnings_of(JOB, events)] == ["new"]
    creations = [event(f"a-job-{number}", "FailedCreate", f"pod {number}", f"2026-01-02T00:00:0{number}Z") for number in range(3)]
    assert [warning.message for warning in warnings_of(JOB, creations)] == ["pod 2"]


def test_a_job_that_runs_again_is_not_told_of_old_trouble() -> None:
    pods = [{"metadata": {"name": name}} for name in ("a-job-master-0", "a-job-worker-0")]
    warning = [Warning("FailedCreate", "a-job", QUOTA, "")]
    assert with_warnings(JobView(State.RUNNING), warning, pods, 2) == JobView(State.RUNNING)
    assert with_warnings(JobView(State.PENDING, "1 of 2 pods run"), warning, pods, 2) == JobView(State.PENDING, "1 of 2 pods run")
    assert with_warnings(JobView(State.PENDING), warning, pods[:1], 2).state is State.QUEUED


def test_a_pod_that_was_placed_is_not_told_of_as_one_that_cannot_be() -> None:
    warning = [Warning("FailedScheduling", "a-job-master-0", "0/1 nodes are available", "")]
    pod: dict[str, Any] = {"metadata": {"name": "a-job-master-0"}, "spec": {}}
    assert "0/1 nodes" in with_warnings(JobView(State.PENDING), warning, [pod], 1).reason
    pod["spec"]["nodeName"] = "node-1"
    assert with_warnings(JobView(State.PENDING, "creating"), warning, [pod], 1) == JobView(State.PENDING, "creating")
