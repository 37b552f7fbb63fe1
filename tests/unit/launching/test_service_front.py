"""The coordinator's Service: before the job, one a run, and nothing left of a submission that failed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from cluster_stage import Stage
from fake_api import FakeApi, Fault

from rolecast.launching.failure import JobFailed, LaunchError


@pytest.fixture
def stage(api: FakeApi) -> Stage:
    return Stage(api, stage="rl")


def name(stage: Stage) -> str:
    return str(stage.kind.render(stage.spec)[1]["metadata"]["name"])


def service(stage: Stage) -> dict[str, Any]:
    return stage.api.objects["services"][name(stage)]


def left_by(one: Stage, other: Stage) -> None:
    """A Service in front of the job of `one`, under the name that `other` wants, as two jobs that were told one name have it."""
    manifest = one.kind.render(one.spec)[1]
    manifest["metadata"]["name"] = name(other)
    one.api.put("services", manifest)


def test_the_service_comes_before_the_job_belongs_to_it_and_goes_after_it(stage: Stage) -> None:
    owners: list[Any] = []
    stage.then(lambda: owners.extend(service(stage)["metadata"]["ownerReferences"]), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    posts = [request.path.rpartition("/")[2] for request in stage.api.seen("POST", "")]
    assert posts == ["services", "pytorchjobs"]
    assert [owner["uid"] for owner in owners] == [stage.job["metadata"]["uid"]]
    assert not any("blockOwnerDeletion" in owner for owner in owners)  # which would take a right on finalizers
    assert not stage.api.objects["services"]


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_the_next_runs_rl_does_not_wait_for_the_finished_jobs_day_to_be_over(api: FakeApi, end: str) -> None:
    one, other = Stage(api, stage="rl", run="s3://store/runs/one"), Stage(api, stage="rl")
    one.then(one.condition(end))
    with contextlib.suppress(JobFailed):
        one.launcher.run(one.spec)
    other.then(other.condition("Succeeded"))
    other.launcher.run(other.spec)
    assert {one.spec.job_name, other.spec.job_name} == set(api.objects["pytorchjobs"])


def test_the_service_of_another_live_job_is_not_taken_over(api: FakeApi) -> None:
    one, other = Stage(api, stage="rl"), Stage(api, stage="rl", run="s3://store/runs/other")
    one.existing()
    left_by(one, other)
    with pytest.raises(LaunchError, match=rf"belongs to another job, {one.spec.job_name}, which has not ended"):
        other.launcher.run(other.spec)
    assert not api.seen("POST", "pytorchjobs")


@pytest.mark.parametrize("left", ["failed", "gone"])  # a finished job, or a Service that was applied by hand
def test_the_service_that_a_job_of_before_left_is_replaced(api: FakeApi, left: str) -> None:
    one, other = Stage(api, stage="rl", run="s3://store/runs/one"), Stage(api, stage="rl")
    left_by(one, other)
    if left == "failed":
        one.existing()
        one.condition("Failed")()
    selected: list[Any] = []
    other.then(lambda: selected.append(service(other)["spec"]["selector"]), other.condition("Succeeded"))
    other.launcher.run(other.spec)
    assert selected[0]["training.kubeflow.org/job-name"] == other.spec.job_name


def test_a_service_that_is_none_of_ours_is_left_alone(stage: Stage) -> None:
    stage.api.put("services", {"metadata": {"name": name(stage), "labels": {}}, "spec": {"selector": {"app": "x"}}})
    with pytest.raises(LaunchError, match="is not of Rolecast; delete it, or give this job another name"):
        stage.launcher.run(stage.spec)
    assert not stage.api.seen("DELETE", "")


def test_a_launch_that_fails_at_the_service_submits_no_job(stage: Stage) -> None:
    stage.api.faults.append(Fault(403, 99, "POST", "services"))
    with pytest.raises(LaunchError, match="launcher's Role"):
        stage.launcher.run(stage.spec)
    assert not stage.api.seen("POST", "pytorchjobs")


def test_a_launch_that_fails_at_the_job_leaves_no_service(stage: Stage) -> None:
    stage.api.faults.append(Fault(422, 99, "POST", "pytorchjobs"))
    with pytest.raises(LaunchError, match="deploy render"):
        stage.launcher.run(stage.spec)
    assert not stage.api.objects["services"]


def test_a_launch_that_fails_after_the_job_leaves_neither(stage: Stage) -> None:
    stage.api.faults.append(Fault(403, 99, "PATCH", "services"))
    with pytest.raises(LaunchError, match="cannot change services"):
        stage.launcher.run(stage.spec)
    assert not stage.api.objects["services"]
    assert not stage.api.objects["pytorchjobs"]


def test_a_launch_that_fails_leaves_the_job_that_it_adopted(stage: Stage) -> None:
    stage.existing()
    stage.api.faults.append(Fault(403, 99, "PATCH", "services"))
    with pytest.raises(LaunchError, match="cannot change services"):
        stage.launcher.run(stage.spec)
    assert stage.job


def test_the_service_of_an_adopted_job_is_made_again_if_someone_deleted_it(stage: Stage) -> None:
    job = stage.existing()
    owners: list[Any] = []
    stage.then(lambda: owners.extend(service(stage)["metadata"]["ownerReferences"]), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert [owner["uid"] for owner in owners] == [job["metadata"]["uid"]]


def test_the_service_that_the_garbage_collector_is_about_to_take_is_not_relied_on(stage: Stage) -> None:
    """It goes with the job of before, whose name ours has, some time after that."""
    manifest = stage.kind.render(stage.spec)[1]
    manifest["metadata"]["ownerReferences"] = [{"kind": "PyTorchJob", "name": stage.spec.job_name, "uid": "uid-of-the-job-of-before"}]
    before = stage.api.put("services", manifest)
    now: list[str] = []
    stage.then(lambda: now.append(service(stage)["metadata"]["uid"]), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert now
    assert now[0] != before["metadata"]["uid"]


def test_a_service_with_another_port_is_replaced(stage: Stage) -> None:
    manifest = stage.kind.render(stage.spec)[1]
    manifest["spec"]["ports"][0]["port"] = 9999
    stage.api.put("services", manifest)
    ports: list[int] = []
    stage.then(lambda: ports.append(service(stage)["spec"]["ports"][0]["port"]), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert ports == [stage.spec.coordinator.port]


def test_a_service_that_was_applied_by_hand_for_this_very_job_is_kept(stage: Stage) -> None:
    before = stage.api.put("services", stage.kind.render(stage.spec)[1])
    now: list[str] = []
    stage.then(lambda: now.append(service(stage)["metadata"]["uid"]), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert now == [before["metadata"]["uid"]]


def test_two_runs_at_once_have_a_service_each(api: FakeApi) -> None:
    one, other = Stage(api, stage="rl"), Stage(api, stage="rl", run="s3://store/runs/other")
    one.existing()
    one.api.put("services", one.kind.render(one.spec)[1])
    there: list[set[str]] = []
    other.then(lambda: there.append(set(api.objects["services"])), other.condition("Succeeded"))
    other.launcher.run(other.spec)
    assert there == [{one.spec.coordinator_service, other.spec.coordinator_service}]
