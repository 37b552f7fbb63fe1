"""Which job of its name a launcher takes for its own, over HTTP against a fake API server."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_stage import Stage, terminated
from fake_api import FakeApi, Fault

from rolecast.errors import InputError
from rolecast.launching.adoption import CONFIG_HASH, LAUNCHER
from rolecast.launching.failure import ArtifactMissing, LaunchError, SpecMismatch
from rolecast.launching.workflow import Workflow
from rolecast.store.watched import LEASE_KEY, lease_of


@pytest.fixture
def stage(api: FakeApi) -> Stage:
    return Stage(api)


def live(stage: Stage, **metadata: Any) -> dict[str, Any]:
    """A job that an earlier launcher submitted, and that runs."""
    job = stage.existing()
    job["metadata"].update(metadata)
    job["metadata"]["annotations"][LAUNCHER] = "an-earlier-one"
    stage.pod("Running")()
    return job


@pytest.mark.parametrize("end", ["Failed", "Succeeded"])
def test_a_job_of_before_that_ended_is_deleted_and_made_anew(stage: Stage, end: str) -> None:
    before = stage.existing()
    stage.condition(end, "Yesterday")()
    stage.store.delete("sft")  # the run was deleted and made anew, and with it what the job had made
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert stage.job["metadata"]["uid"] != before["metadata"]["uid"]
    assert [request.body["preconditions"] for request in stage.api.seen("DELETE", "pytorchjobs")] == [{"uid": before["metadata"]["uid"]}]
    assert any("of before had" in line and "Yesterday" in line for line in stage.said)


def test_a_failed_job_does_not_block_its_own_retry_with_more_memory(stage: Stage) -> None:
    stage.existing(memory="1Gi")
    stage.condition("Failed")()
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    master = stage.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    assert master["resources"]["limits"]["memory"] == stage.spec.memory


def test_a_job_of_before_that_succeeded_and_whose_result_is_there_is_the_success(stage: Stage) -> None:
    """A step that was drained while its job ended finds it so, and need not wait for GPUs again."""
    stage.existing()
    stage.condition("Succeeded")()
    stage.launcher.run(stage.spec)
    assert not stage.api.seen("POST", "pytorchjobs")
    assert not stage.api.seen("DELETE", "pytorchjobs")


def test_a_job_that_is_being_deleted_is_waited_for(stage: Stage) -> None:
    before = stage.existing()
    before["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    looks = iter(range(4))
    sleep = stage.clock.sleep

    def dying(seconds: float) -> None:
        sleep(seconds)
        if next(looks) == 2:
            stage.api.remove("pytorchjobs", stage.spec.job_name)

    stage.launcher._patience = type(stage.launcher._patience)(stage.said.append, stage.clock, dying)
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert stage.job["metadata"]["uid"] != before["metadata"]["uid"]
    assert any("waiting for its end" in line for line in stage.said)


def test_a_job_that_is_never_gone_is_an_error(stage: Stage) -> None:
    stage.existing()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with pytest.raises(LaunchError, match="still there 600 s after its deletion; look at its finalizers"):
        stage.launcher.run(stage.spec)


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_who_adopts_a_job_owns_it(api: FakeApi, kind: str) -> None:
    """The first launcher's Workflow, or in old releases its pod, no longer takes the job with it."""
    stage = Stage(api, kind)
    before = live(stage, ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "step-1", "uid": "uid-of-step-1"}])
    stage.then(stage.condition("Succeeded"))
    stage.launch(stage.workflow()).run(stage.spec)
    assert stage.job["metadata"]["uid"] == before["metadata"]["uid"]
    assert [owner["name"] for owner in stage.job["metadata"]["ownerReferences"]] == ["demo-x7"]
    assert stage.job["metadata"]["annotations"][LAUNCHER] != "an-earlier-one"


def test_an_adopted_job_of_a_launcher_without_a_workflow_has_no_owner(stage: Stage) -> None:
    live(stage, ownerReferences=[{"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "old", "uid": "uid-of-old"}])
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert stage.job["metadata"]["ownerReferences"] == []


def test_a_live_job_of_another_config_of_the_run_is_not_adopted(stage: Stage) -> None:
    live(stage)["metadata"]["annotations"][CONFIG_HASH] = "of-the-run-that-was-here-before"
    with pytest.raises(SpecMismatch, match="another config of the run"):
        stage.launcher.run(stage.spec)


def test_a_second_run_of_the_same_stage_adopts_while_the_first_ones_job_exists(stage: Stage) -> None:
    second = stage.launch()

    def again() -> None:
        stage.api.script.appendleft(stage.condition("Succeeded"))
        second.run(stage.spec)

    stage.then(stage.pod("Running"))
    stage.then(again)
    stage.launcher.run(stage.spec)
    assert len(stage.api.seen("POST", "pytorchjobs")) == 1
    assert stage.job["metadata"]["annotations"][LAUNCHER] == second._name


@pytest.mark.parametrize(("stage_kind", "result"), [("sft", "sft/model"), ("rollout", "plans/questions")])
def test_success_without_the_stages_result_is_a_failure_told_as_such(api: FakeApi, stage_kind: str, result: str) -> None:
    stage = Stage(api, stage="plans" if stage_kind == "rollout" else "sft", kind=stage_kind)
    stage.then(stage.condition("Succeeded"), lambda: stage.store.delete(result))
    with pytest.raises(ArtifactMissing, match=f"succeeded, but {stage.spec.run} has no committed {result}"):
        stage.launcher.run(stage.spec)


def test_a_run_that_is_not_there_is_told_before_anything_is_submitted(stage: Stage) -> None:
    stage.store.delete("run.json")
    with pytest.raises(InputError, match=r"has no run\.json; make it with `rolecast run create`"):
        stage.launcher.run(stage.spec)
    assert not stage.api.requests


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_a_launched_job_knows_its_lease_and_a_rendered_one_has_none(api: FakeApi, kind: str) -> None:
    stage = Stage(api, kind, nodes=2)
    rendered = stage.kind.render(stage.spec)[0]
    assert not [variable for environment in stage.kind.environments(rendered) for variable in environment if variable["name"] == LEASE_KEY]
    seen: list[Any] = []
    stage.then(lambda: seen.append(stage.store.get(lease_of(stage.spec.job_name))), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    for environment in stage.kind.environments(stage.job):
        assert {"name": LEASE_KEY, "value": lease_of(stage.spec.job_name)} in environment
    assert seen != [None]
    assert stage.store.get(lease_of(stage.spec.job_name)) is None  # the job is over


@pytest.mark.parametrize("namespace", ["rolecast", "elsewhere"])
def test_k10_the_workflow_owns_the_job_and_never_across_namespaces(stage: Stage, namespace: str) -> None:
    workflow = stage.workflow()
    stage.then(stage.condition("Succeeded"))
    stage.launch(Workflow(workflow.name, namespace)).run(stage.spec)
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "demo-x7", "uid": "uid-of-demo-x7"}
    assert stage.job["metadata"].get("ownerReferences", []) == ([owner] if namespace == "rolecast" else [])


@pytest.mark.parametrize("status", [403, 404, 503])
def test_k10_a_workflow_that_cannot_be_read_owns_nothing_and_stops_nothing(stage: Stage, status: int) -> None:
    workflow = stage.workflow()
    stage.api.faults.append(Fault(status, 99, "GET", "workflows"))
    stage.then(stage.condition("Succeeded"))
    stage.launch(workflow).run(stage.spec)
    assert "ownerReferences" not in stage.job["metadata"]


def test_losing_the_race_for_an_ended_jobs_name_adopts_the_winners_job(api: FakeApi) -> None:
    """Two launchers saw the same job fail: one makes it anew, the other takes that one."""
    stage = Stage(api, backoff={"retries": 1})
    stage.then(stage.pod("Failed", **terminated(1)), stage.condition("Failed"))
    sleep, others = stage.clock.sleep, []

    def other(seconds: float) -> None:
        if seconds == 10 and not others:  # between deletion and creation
            others.append(stage.existing())
        sleep(seconds)

    stage.launcher._patience = type(stage.launcher._patience)(stage.said.append, stage.clock, other)
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert stage.job["metadata"]["uid"] == others[0]["metadata"]["uid"]
