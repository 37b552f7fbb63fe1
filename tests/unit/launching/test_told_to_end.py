"""SIGTERM to a launcher, in every state of its job: a run that was terminated takes the job with it, a node that is drained does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cluster_stage import SPEC, Stage, terminated
from fake_api import FakeApi, Fault

from rolecast.launching.adoption import LAUNCHER
from rolecast.launching.patience import Patience
from rolecast.launching.workflow import NAMESPACE, WORKFLOW, Workflow, own_workflow, shut_down
from rolecast.store.watched import lease_of

SUBMIT = """
    import sys
    sys.path.insert(0, {folder!r})
    from pathlib import Path
    from types import SimpleNamespace
    from cluster_stage import cluster, read_spec
    from rolecast.launching.cluster import KINDS
    from rolecast.launching.kubernetes import KubernetesLauncher
    from rolecast.store.local import LocalStore
    store = LocalStore(Path({store!r}))
    KubernetesLauncher(cluster(SimpleNamespace(url={url!r})), KINDS["pytorchjob"], store=lambda run: store).run(read_spec({spec!r}))
"""
STATES = ["submitting", "queued", "pending", "running", "ended", "dying", "between"]


def told(stage: Stage, state: str, workflow: Workflow | None, before: Callable[[], Any] = lambda: None) -> str:
    """Launches a job, brings it into the state, does `before`, sends SIGTERM to this process; what the launcher said."""
    launcher = stage.launch(workflow)

    def tell() -> None:
        before()
        os.kill(os.getpid(), signal.SIGTERM)

    if state == "submitting":  # the answer is lost
        stage.api.faults.append(Fault(503, 1, "POST", "pytorchjobs"))
    if state == "between":  # two attempts
        stage.then(stage.pod("Failed", **terminated(1)), stage.condition("Failed"))
    if state in ("submitting", "between"):
        launcher._patience = Patience(stage.said.append, stage.clock, lambda seconds: tell())
    else:
        stage.then(arranged(stage, state))
        stage.then(tell if state in ("queued", "pending", "running") else lambda: None)
    if state in ("ended", "dying"):
        stage.api.script.clear()
        stage.then(arranged(stage, state), tell)
    with pytest.raises(SystemExit) as caught:
        launcher.run(stage.spec)
    assert caught.value.code == 143
    return "\n".join(stage.said)


def arranged(stage: Stage, state: str) -> Callable[[], object]:
    return {
        "queued": stage.suspend(True),
        "pending": stage.pod("Pending"),
        "running": stage.pod("Running"),
        "ended": stage.condition("Failed"),
        "dying": lambda: stage.api.put(
            "pytorchjobs", {**stage.job, "metadata": {**stage.job["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        ),
    }[state]


@pytest.mark.parametrize("state", STATES)
def test_k9_a_run_that_was_shut_down_takes_the_job_with_it(api: FakeApi, state: str) -> None:
    stage = Stage(api, backoff={"retries": 1})
    told(stage, state, stage.workflow(), lambda: stage.workflow(shutdown="Terminate"))
    if state != "submitting":
        assert {request.body["propagationPolicy"] for request in api.seen("DELETE", "pytorchjobs")} == {"Foreground"}
    assert not api.objects.get("pytorchjobs")
    assert stage.store.get(lease_of(stage.spec.job_name)) is None


def test_k9_a_run_that_was_shut_down_while_its_job_was_submitted_leaves_no_service(api: FakeApi) -> None:
    stage = Stage(api, stage="rl")
    told(stage, "submitting", stage.workflow(), lambda: stage.workflow(shutdown="Terminate"))
    assert not api.objects["services"]


@pytest.mark.parametrize("state", ["queued", "pending", "running", "ended", "dying"])
def test_k9_a_drain_leaves_the_job(api: FakeApi, state: str) -> None:
    stage = Stage(api)
    said = told(stage, state, stage.workflow())
    assert "Workflow demo-x7 goes on" in said
    assert not api.seen("DELETE", "")
    assert stage.store.get(lease_of(stage.spec.job_name)) is not None  # which ends the job if no step comes


def test_k9_the_step_that_runs_again_adopts_the_job_that_a_drain_left(api: FakeApi) -> None:
    stage = Stage(api)
    workflow = stage.workflow()
    told(stage, "running", workflow)
    uid = stage.job["metadata"]["uid"]
    stage.then(stage.condition("Succeeded"))
    stage.launch(workflow).run(stage.spec)
    assert stage.job["metadata"]["uid"] == uid


def test_k9_a_job_is_deleted_before_its_logs_are_read_to_their_end(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's grace is 30 s, and reading a log may take all of it."""
    stage = Stage(api)
    left: list[int] = []
    monkeypatch.setattr("rolecast.launching.logs.PodLogs.close", lambda self: left.append(len(api.objects["pytorchjobs"])))
    api.faults.append(Fault(500, 1, "DELETE"))  # a blip at the worst moment
    told(stage, "running", stage.workflow(), lambda: stage.workflow(shutdown="Stop"))
    assert left == [0]


@pytest.mark.parametrize("shutdown", ["Terminate", ""])
def test_k9_a_real_process_ends_with_143(api: FakeApi, shutdown: str) -> None:
    stage = Stage(api)
    workflow = stage.workflow()
    code = textwrap.dedent(SUBMIT.format(folder=str(Path(__file__).parent), store=str(stage.store.root), url=api.url, spec=SPEC))
    variables = {"OMP_NUM_THREADS": "1", WORKFLOW: workflow.name, NAMESPACE: workflow.namespace}
    step = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **variables})
    try:
        deadline = time.monotonic() + 60
        while not api.seen("GET", "pytorchjobs", watch="True"):
            assert time.monotonic() < deadline, "the launcher never watched its job"
            time.sleep(0.02)
        stage.workflow(shutdown=shutdown)
        step.send_signal(signal.SIGTERM)
        assert step.wait(timeout=40) == 143
    finally:
        step.kill()
    assert len(api.objects["pytorchjobs"]) == (0 if shutdown else 1)


def test_k9_a_workflow_that_is_gone_takes_the_job_with_it(api: FakeApi) -> None:
    stage = Stage(api)
    workflow = stage.workflow()
    told(stage, "running", workflow, lambda: api.remove("workflows", workflow.name))
    assert not api.objects["pytorchjobs"]


def test_k9_a_launcher_that_is_no_step_takes_its_job_with_it(api: FakeApi) -> None:
    stage = Stage(api)
    told(stage, "running", None)
    assert not api.objects["pytorchjobs"]


def test_k9_a_workflow_that_cannot_be_read_leaves_the_job_to_its_lease(api: FakeApi) -> None:
    stage = Stage(api)
    workflow = stage.workflow()
    said = told(stage, "running", workflow, lambda: api.faults.append(Fault(403, 99, "GET", "workflows")))
    assert "cannot be read" in said
    assert "in 15 minutes" in said
    assert not api.seen("DELETE", "")


def test_k9_a_job_that_another_launcher_adopted_stays(api: FakeApi) -> None:
    stage = Stage(api)
    workflow = stage.workflow()

    def adopted() -> None:
        stage.workflow(shutdown="Terminate")
        stage.job["metadata"]["annotations"][LAUNCHER] = "a-second-one"

    said = told(stage, "running", workflow, adopted)
    assert "belongs to another launcher" in said
    assert stage.job


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, False),
        ({"spec": {"shutdown": ""}}, False),
        ({"spec": {"shutdown": "Terminate"}}, True),
        ({"spec": {"shutdown": "Stop"}}, True),
        ({"spec": {"activeDeadlineSeconds": 0}}, True),  # as Kubeflow Pipelines terminates a run
        ({"spec": {"activeDeadlineSeconds": 3600}, "status": {"startedAt": "2026-01-01T11:00:01Z"}}, False),
        ({"spec": {"activeDeadlineSeconds": 3600}, "status": {"startedAt": "2026-01-01T11:00:00Z"}}, True),
        ({"spec": {"activeDeadlineSeconds": 3600}}, False),
        ({"status": {"phase": "Running"}}, False),
        ({"status": {"phase": "Failed"}}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
    ],
)
def test_how_a_workflow_says_that_it_is_over(parts: dict[str, Any], expected: bool) -> None:
    assert shut_down({"metadata": {}, **parts}, NOW) is expected


def test_a_step_knows_its_workflow_by_its_variables_and_a_laptop_has_none() -> None:
    assert own_workflow({WORKFLOW: "demo-x7", NAMESPACE: "team"}) == Workflow("demo-x7", "team")
    assert own_workflow({NAMESPACE: "team"}) == own_workflow({}) == Workflow()
