"""The launcher over HTTP against a fake API server. Names of tests carry the number of the check that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_stage import SPEC, Stage, cluster, terminated
from fake_api import FakeApi, Fault

from rolecast.launching.failure import DeadlineExceeded, DeletedExternally, JobFailed, LaunchError, SpecMismatch, headline
from rolecast.launching.kubernetes import KubernetesLauncher
from rolecast.launching.learner_pod import SPEC_HASH
from rolecast.launching.spec import read_spec


@pytest.fixture
def stage(api: FakeApi) -> Stage:
    return Stage(api)


def unschedulable(message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}


def waiting(reason: str, message: str) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": reason, "message": message}}}]}


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_a_job_is_submitted_watched_and_its_states_are_told(api: FakeApi, kind: str) -> None:
    stage = Stage(api, kind, nodes=2)
    stage.then(stage.pod("Running"))
    stage.then(stage.pod("Running", "worker-0"))
    stage.then(stage.later(7), stage.condition("Succeeded" if kind == "pytorchjob" else "Complete"))
    outcome = stage.launcher.run(stage.spec)
    assert outcome.name == stage.spec.job_name
    assert outcome.seconds["running"] >= 7
    told = [line.split(" is ")[1] for line in stage.said if " is " in line]
    assert told == ["pending: 0 of 2 pods run", "pending: 1 of 2 pods run", "running", "succeeded"]


def test_k1_the_name_follows_from_run_and_stage(api: FakeApi) -> None:
    for _ in range(2):
        stage = Stage(api)
        stage.then(stage.condition("Succeeded"))
        stage.launcher.run(stage.spec)
        stage.store.delete("sft")
    assert len(api.objects["pytorchjobs"]) == 1
    assert [request.body["metadata"]["name"] for request in api.seen("POST", "pytorchjobs")] == [stage.spec.job_name] * 2


def test_k2_a_job_with_the_same_spec_is_adopted(stage: Stage) -> None:
    before = stage.existing()
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert stage.job["metadata"]["uid"] == before["metadata"]["uid"]
    assert any("adopted" in line for line in stage.said)


@pytest.mark.parametrize("changes", [{"image": "other:1"}, {"nodes": 2}, {"stage": "rl"}])
def test_k2_a_live_job_with_another_spec_is_an_error(stage: Stage, changes: dict[str, Any]) -> None:
    stage.existing(**changes)
    with pytest.raises(
        SpecMismatch, match=rf"job {stage.spec.job_name}.*another spec.*rolecast job cancel {stage.spec.job_name}"
    ) as caught:
        stage.launcher.run(stage.spec)
    assert caught.value.exit_code == 3
    assert not stage.api.seen("DELETE", "")


def test_k2_a_job_that_was_not_submitted_by_rolecast_is_an_error(stage: Stage) -> None:
    del stage.existing()["metadata"]["annotations"][SPEC_HASH]
    with pytest.raises(SpecMismatch, match="not submitted by rolecast"):
        stage.launcher.run(stage.spec)


def test_k3_the_job_is_listed_again_when_the_history_is_gone(stage: Stage) -> None:
    stage.then(stage.pod("Running"))
    stage.then(stage.condition("Succeeded"), stage.api.compact)  # the event is lost; only a list shows it
    stage.launcher.run(stage.spec)
    assert len(lists(stage)) == 2


def test_k3_the_job_is_listed_again_after_a_watch_broke_off(stage: Stage) -> None:
    stage.api.cut_watches = 3
    for _ in range(3):
        stage.then(lambda: None)
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert len(lists(stage)) == 4
    assert stage.clock.now - 1000 == pytest.approx(0.5 + 1 + 2)  # seconds between attempts grow


def test_k3_waiting_between_attempts_is_bounded(stage: Stage) -> None:
    slept: list[float] = []
    launcher = KubernetesLauncher(cluster(stage.api), stage.kind, stage.said.append, stage.clock, slept.append, lambda run: stage.store)
    stage.then(lambda: stage.api.faults.append(Fault(503, 12, "GET", "pytorchjobs")))
    stage.then(stage.condition("Succeeded"))
    launcher.run(stage.spec)
    assert slept[slept.index(0.5) :][:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert max(slept) == 30


def test_k3_a_watch_goes_on_from_the_last_version_without_a_list(stage: Stage) -> None:
    for _ in range(3):
        stage.then(stage.pod("Running"))
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert len(lists(stage)) == 1


def lists(stage: Stage) -> list[Any]:
    """Of the job, since it was submitted."""
    (submitted,) = [at for at, request in enumerate(stage.api.requests) if request.method == "POST"]
    return [request for request in stage.api.requests[submitted:] if request.permission == ("kubeflow.org", "pytorchjobs", "list")]


def test_k4_a_job_that_has_ended_is_read_before_anything_is_waited_for(stage: Stage) -> None:
    stage.existing()
    stage.condition("Succeeded")()
    stage.pod("Running")()  # a sidecar, or a pod that the operator has not cleaned up
    stage.launcher.run(stage.spec)
    assert not stage.api.seen("GET", "pytorchjobs", watch="True")


def test_k4_a_job_that_fails_before_it_is_watched_is_told(stage: Stage) -> None:
    stage.api.faults.append(Fault(503, 1, "GET", "/pods"))
    stage.then(stage.condition("Failed", "PyTorchJobFailed", "1 replica failed"), stage.api.compact)
    with pytest.raises(JobFailed, match="PyTorchJobFailed: 1 replica failed"):
        stage.launcher.run(stage.spec)


@pytest.mark.parametrize(("state", "limit"), [("queued", 300), ("pending", 100), ("running", 200)])
def test_k5_each_state_has_its_own_deadline(stage: Stage, state: str, limit: int) -> None:
    arrange(stage, state)
    stage.then(stage.later(limit + 1))
    with pytest.raises(DeadlineExceeded, match=f"was {state} for more than {limit} s.*deadlines.{state}"):
        stage.launcher.run(stage.spec)
    assert stage.api.seen("DELETE", stage.spec.job_name)[0].body["propagationPolicy"] == "Foreground"


def test_k5_waiting_in_the_queue_does_not_use_up_the_time_to_run(stage: Stage) -> None:
    arrange(stage, "queued")
    for step in (
        stage.later(250),
        stage.suspend(False),
        stage.later(90),
        stage.pod("Running"),
        stage.later(190),
        stage.condition("Succeeded"),
    ):
        stage.then(step)
    seconds = stage.launcher.run(stage.spec).seconds
    assert 250 <= seconds["queued"] < 300
    assert 190 <= seconds["running"] < 200


def test_k5_a_deadline_passes_while_the_api_server_is_away(stage: Stage) -> None:
    stage.then(lambda: stage.api.faults.append(Fault(503, 40, "GET")))
    with pytest.raises(DeadlineExceeded, match="was pending"):
        stage.launcher.run(stage.spec)


def arrange(stage: Stage, state: str) -> None:
    stage.existing()
    if state == "queued":
        stage.suspend(True)()
    if state == "running":
        stage.pod("Running")()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."), "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        (waiting("ImagePullBackOff", 'Back-off pulling image "rolecast-learner:test"'), 'ImagePullBackOff: Back-off pulling image "rolecast-learner:test"'),
        (waiting("CreateContainerConfigError", 'secret "rolecast-s3" not found'), 'CreateContainerConfigError: secret "rolecast-s3" not found'),
    ],
)  # fmt: skip
def test_k6_the_reason_to_wait_is_shown_and_is_in_the_error(stage: Stage, status: dict[str, Any], reason: str) -> None:
    stage.then(stage.pod("Pending", **status))
    stage.then(stage.later(101))
    with pytest.raises(DeadlineExceeded) as caught:
        stage.launcher.run(stage.spec)
    assert any(line.endswith(f"is pending: {stage.spec.job_name}-master-0: {reason}") for line in stage.said)
    assert reason in str(caught.value)


def test_k6_a_pod_that_starts_normally_gives_no_reason(stage: Stage) -> None:
    stage.then(stage.pod("Pending", **waiting("ContainerCreating", "")))
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert not any("ContainerCreating" in line for line in stage.said)


@pytest.mark.parametrize("per_second", [1, 2, 6])  # lines that share a timestamp are told apart too
def test_k7_logs_are_followed_over_broken_connections_without_doubles(stage: Stage, per_second: int) -> None:
    pod = f"{stage.spec.job_name}-master-0"
    stage.api.logs[pod] = [f"2026-01-01T00:00:0{i // per_second}.000000000Z line {i}" for i in range(6)]
    stage.api.cut_logs_after.extend([3, 5])
    stage.then(stage.pod("Running"))
    stage.then(stage.pod("Succeeded"), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert [line for line in stage.said if line.startswith(pod)] == [f"{pod} | line {i}" for i in range(6)]


@pytest.mark.parametrize("status", [0, 400, 403, 404, 500])
def test_k7_errors_of_logs_never_fail_a_run(stage: Stage, status: int) -> None:
    stage.api.faults.append(Fault(status, 1000, "GET", "/log"))
    stage.then(stage.pod("Running"))
    stage.then(stage.pod("Succeeded"), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)


def test_k8_a_failure_names_the_first_pod_its_exit_code_and_shows_its_last_lines(api: FakeApi) -> None:
    stage = Stage(api, nodes=2)
    first, second = f"{stage.spec.job_name}-worker-0", f"{stage.spec.job_name}-master-0"
    api.logs[first] = [f"2026-01-01T00:00:00.{i:09d}Z step {i}" for i in range(100)]
    stage.then(
        stage.pod("Failed", "master-0", **terminated(1, finished="2026-01-01T00:00:09Z")),
        stage.pod("Failed", "worker-0", **terminated(137, "OOMKilled", finished="2026-01-01T00:00:05Z")),
        stage.condition("Failed", "PyTorchJobFailed", "worker failed"),
    )
    with pytest.raises(JobFailed, match=rf"{first} ended with exit code 137 \(OOMKilled\)") as caught:
        stage.launcher.run(stage.spec)
    report = caught.value.report
    assert report.index(first) < report.index(second)
    assert "| 137 | OOMKilled |" in report
    assert "    step 99" in report
    assert "step 10\n" not in report  # only the last lines
    assert not caught.value.retryable


def test_k8_an_eviction_for_its_own_use_is_named_though_no_container_ended(stage: Stage) -> None:
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 20Gi | now."
    stage.then(stage.pod("Failed", reason="Evicted", message=message), stage.condition("Failed"))
    with pytest.raises(JobFailed, match="Evicted") as caught:
        stage.launcher.run(stage.spec)
    assert "|  | Evicted | Pod ephemeral local storage usage exceeds the total limit of containers 20Gi \\| now. |" in caught.value.report
    assert caught.value.retryable
    assert not caught.value.lost


@pytest.mark.parametrize("code", [1, 137, 143])
def test_a_job_that_failed_is_submitted_again_from_its_checkpoint(api: FakeApi, code: int) -> None:
    stage = Stage(api, backoff={"retries": 2, "base": 10, "limit": 15})
    stage.then(stage.pod("Failed", **terminated(code)), stage.condition("Failed"))
    stage.then(lambda: api.objects["pods"].clear(), stage.condition("Failed"))
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert len(api.seen("POST", "pytorchjobs")) == 3
    assert {request.body["propagationPolicy"] for request in api.seen("DELETE", "pytorchjobs")} == {"Foreground"}


@pytest.mark.parametrize(("code", "reason"), [(2, "Error"), (3, "Error"), (137, "OOMKilled")])
def test_what_would_fail_again_is_not_submitted_again(api: FakeApi, code: int, reason: str) -> None:
    stage = Stage(api, backoff={"retries": 3})
    stage.then(stage.pod("Failed", **terminated(code, reason)), stage.condition("Failed"))
    with pytest.raises(JobFailed) as caught:
        stage.launcher.run(stage.spec)
    assert caught.value.exit_code == (2 if code == 2 else 3)  # the step's own, by which it is not run again
    assert len(api.seen("POST", "pytorchjobs")) == 1


def test_the_headline_is_what_the_container_says_of_its_end(api: FakeApi) -> None:
    stage = Stage(api, nodes=2)
    stage.then(
        stage.pod("Failed", "master-0", **terminated(1, message="another rank has ended")),
        stage.pod("Failed", "worker-0", **terminated(3, message="Traceback\nrolecast: rewards have no variance\n", finished="2026-01-01T00:00:09Z")),
        stage.condition("Failed", "PyTorchJobFailed", "exit code 1"),
    )  # fmt: skip
    with pytest.raises(JobFailed) as caught:
        stage.launcher.run(stage.spec)
    assert str(caught.value) == (
        f"job {stage.spec.job_name} failed: rewards have no variance ({stage.spec.job_name}-worker-0 ended with exit code 3, Error)"
    )


@pytest.mark.parametrize("status", [0, 429, 500, 503])
@pytest.mark.parametrize("where", ["POST pytorchjobs", "GET pytorchjobs", "GET pods"])
def test_k11_blips_of_the_api_server_never_fail_a_run(stage: Stage, status: int, where: str) -> None:
    method, part = where.split()
    stage.api.faults.append(Fault(status, 4, method, part))
    stage.then(stage.pod("Running"))
    stage.then(lambda: stage.api.faults.append(Fault(status, 4, method, part)), stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert any("trying again" in line for line in stage.said)


def test_k11_a_job_whose_creation_was_answered_by_an_error_is_found_again(stage: Stage) -> None:
    stage.existing()  # the first POST was carried out, and its answer lost
    stage.api.faults.append(Fault(500, 1, "POST"))
    stage.then(stage.condition("Succeeded"))
    stage.launcher.run(stage.spec)
    assert len(stage.api.objects["pytorchjobs"]) == 1


@pytest.mark.parametrize(("status", "hint"), [(403, "launcher's Role"), (404, "operator installed"), (422, "deploy render")])
def test_what_no_patience_mends_is_an_error_at_once_with_the_next_step(stage: Stage, status: int, hint: str) -> None:
    stage.api.faults.append(Fault(status, 99, "POST"))
    with pytest.raises(LaunchError, match=hint):
        stage.launcher.run(stage.spec)
    assert len(stage.api.seen("POST", "")) == 1


def test_a_deletion_by_someone_else_is_a_failure_with_a_name(stage: Stage) -> None:
    stage.then(stage.pod("Running"))
    stage.then(lambda: stage.api.remove("pytorchjobs", stage.spec.job_name))
    with pytest.raises(DeletedExternally, match="was deleted by someone else while it was running"):
        stage.launcher.run(stage.spec)


def test_a_deletion_that_is_under_way_is_noticed(stage: Stage) -> None:
    stage.then(stage.pod("Running"))
    stage.then(lambda: stage.api.put("pytorchjobs", {**stage.job, "metadata": {**stage.job["metadata"], "deletionTimestamp": "now"}}))
    with pytest.raises(DeletedExternally):
        stage.launcher.run(stage.spec)


def test_a_job_that_was_replaced_by_another_of_its_name_is_noticed(stage: Stage) -> None:
    def replace() -> None:
        stage.api.remove("pytorchjobs", stage.spec.job_name)
        stage.existing()
        stage.condition("Succeeded")()

    stage.then(replace, stage.api.compact)
    with pytest.raises(DeletedExternally):
        stage.launcher.run(stage.spec)


@pytest.mark.parametrize(
    ("message", "killed", "expected"),
    [
        ("", False, ""),
        ("rewards have no variance", False, "rewards have no variance"),
        ("Traceback\nValueError: x\n", False, "ValueError: x"),
        ("rolecast: no space left\nsft 12/100\n", False, "no space left"),
        ("sft 11/100\nsft 12/100\n", True, ""),  # the log's last lines, where nothing was said of the end
        ("rank 0 was killed: out of memory", True, "rank 0 was killed: out of memory"),
    ],
)
def test_a_headline_is_the_reason_or_nothing(message: str, killed: bool, expected: str) -> None:
    assert headline(message, killed) == expected


def test_the_spec_of_the_tests_is_what_the_launcher_reads() -> None:
    assert read_spec(SPEC).deadlines.queued == 300
