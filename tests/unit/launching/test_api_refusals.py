"""What the API server refuses: quotas and conflicts pass, a right that was there comes back, and only AlreadyExists means that it exists."""

from __future__ import annotations

import pytest
from cluster_stage import Stage, cluster
from fake_api import FakeApi, Fault

from rolecast.launching.api_errors import Blip, Later
from rolecast.launching.failure import DeadlineExceeded, Denied, LaunchError

QUOTA = 'pytorchjobs.kubeflow.org "x" is forbidden: exceeded quota: team, requested: count/pytorchjobs.kubeflow.org=1, used: 4, limited: 4'
CONFLICT = 'Operation cannot be fulfilled on resourcequotas "team": the object has been modified'


@pytest.fixture
def stage(api: FakeApi) -> Stage:
    return Stage(api)


@pytest.mark.parametrize(
    ("status", "reason", "message"), [(403, "Forbidden", QUOTA), (409, "Conflict", CONFLICT)]
)  # fmt: skip
@pytest.mark.parametrize("what", ["pytorchjobs", "services"])
def test_k11_a_quota_is_told_as_it_is_and_tried_again(api: FakeApi, status: int, reason: str, message: str, what: str) -> None:
    stage = Stage(api, stage="rl")
    api.faults.append(Fault(status, 3, "POST", what, reason, message))
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    told = [line for line in stage.said if message in line]
    assert [line.rpartition(" in ")[2] for line in told] == ["5 s", "10 s", "20 s"]
    assert not any("Role" in line or "adopted" in line for line in told)


def test_a_quota_that_stays_ends_at_the_deadline_of_the_queue(stage: Stage) -> None:
    stage.api.faults.append(Fault(403, 99, "POST", "pytorchjobs", "Forbidden", QUOTA))
    with pytest.raises(DeadlineExceeded, match=r"refused for 300 s: .*exceeded quota: team.*deadlines\.queued"):
        stage.launcher.run(stage.spec)
    assert 300 <= stage.clock.now - 1000 < 400


def test_a_conflict_with_no_object_of_the_name_is_not_adopted(stage: Stage) -> None:
    stage.api.faults.append(Fault(409, 1, "POST", "pytorchjobs", "Conflict", CONFLICT))
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert len(stage.api.seen("POST", "pytorchjobs")) == 2
    assert not any("adopted" in line for line in stage.said)


UNSEEN = [
    'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: spec.runtimeRef: Invalid value: …: '
    'TrainingRuntime.trainer.kubeflow.org "rolecast-learner" not found: specified trainingRuntime must be created before the TrainJob is created',
    'admission webhook "vtrainjob.kb.io" denied the request: runtime "rolecast-learner" not found',
]


@pytest.mark.parametrize("status", [400, 403, 422])
@pytest.mark.parametrize("message", UNSEEN, ids=["trainer", "kueue"])
def test_a_runtime_that_was_made_a_moment_ago_may_not_be_seen_yet(api: FakeApi, status: int, message: str) -> None:
    stage = Stage(api, "trainjob")
    api.faults.append(Fault(status, 3, "POST", "trainjobs", "Forbidden", message))
    stage.then(stage.condition("Complete"))
    stage.launcher.run(stage.spec)
    assert len(api.seen("POST", "trainjobs")) == 4
    assert stage.clock.now - 1000 < 10


@pytest.mark.parametrize(("kind", "tries"), [("TrainingRuntime", 6), ("ClusterTrainingRuntime", 1)])
def test_a_runtime_that_is_missing_is_told_and_not_waited_for(api: FakeApi, kind: str, tries: int) -> None:
    stage = Stage(api, "trainjob", runtime={"kind": kind})
    api.faults.append(Fault(403, 99, "POST", "trainjobs", "Forbidden", UNSEEN[0]))
    with pytest.raises(Denied, match="must be created before the TrainJob is created; make the runtime") as told:
        stage.launcher.run(stage.spec)
    assert "lacks a right" not in str(told.value)
    assert len(api.seen("POST", "trainjobs")) == tries


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("where", ["pytorchjobs", "pods"])
def test_k11_a_right_that_was_there_comes_back(stage: Stage, status: int, where: str) -> None:
    """An API server that starts answers so for a while, to everybody."""
    stage.then(stage.pod("Running"))
    stage.then(lambda: stage.api.faults.append(Fault(status, 9, "GET", where, "Forbidden", "no RBAC policy matched")))
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    told = [line for line in stage.said if "no RBAC policy matched" in line]
    assert told
    assert len(told) == len(set(told)), "the same trouble is told once in five minutes"


def test_a_right_that_never_was_there_is_an_error_at_once(stage: Stage) -> None:
    stage.api.faults.append(Fault(403, 99, "GET", "/pods", "Forbidden", "no RBAC policy matched"))
    with pytest.raises(LaunchError, match=r"cannot list the pods .*launcher's Role"):
        stage.launcher.run(stage.spec)
    assert not stage.api.seen("POST", "pytorchjobs")


def test_a_patch_of_what_was_replaced_meanwhile_finds_out(stage: Stage) -> None:
    job = stage.existing()
    calls = cluster(stage.api)
    with pytest.raises(Later, match="does not match"):
        calls.patch_job(stage.kind, stage.spec.namespace, stage.spec.job_name, "uid-of-another", {})
    stage.api.remove("pytorchjobs", stage.spec.job_name)
    with pytest.raises(Later, match="deleted meanwhile"):
        calls.patch_job(stage.kind, stage.spec.namespace, stage.spec.job_name, job["metadata"]["uid"], {})


def test_a_right_is_known_by_verb_and_resource(stage: Stage) -> None:
    calls = cluster(stage.api)
    calls.pods("rolecast", "x")
    stage.api.faults.append(Fault(403, 2, "GET"))
    with pytest.raises(Blip, match="after the same call had succeeded"):
        calls.pods("rolecast", "y")
    with pytest.raises(Denied):
        calls.warnings("rolecast")
