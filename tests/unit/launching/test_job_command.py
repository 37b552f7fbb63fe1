"""`rolecast job`, over HTTP against a fake API server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from click.testing import Result
from cluster_stage import Stage, cluster
from fake_api import FakeApi, Fault
from typer.testing import CliRunner

from rolecast.cli.job import app
from rolecast.errors import InputError
from rolecast.launching.jobs import find_jobs, table
from rolecast.launching.patience import Patience

Command = Callable[..., Result]


@pytest.fixture
def command(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("rolecast.launching.cluster.connect", lambda: cluster(api))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return lambda *words: CliRunner().invoke(app, list(words))


def patience() -> Patience:
    return Patience(lambda line: None, lambda: 0.0, lambda seconds: None)


def job(api: FakeApi, kind: str = "pytorchjob", end: str = "", created: str = "2026-01-01T00:00:00Z", **changes: str) -> Stage:
    stage = Stage(api, kind, **changes)
    found = stage.existing()
    found["metadata"]["creationTimestamp"] = created
    if end:
        stage.condition(end)()
    return stage


def test_jobs_of_both_kinds_are_listed_with_their_states(api: FakeApi) -> None:
    old, new = job(api, end="Failed"), job(api, "trainjob", created="2026-01-01T23:00:00Z", stage="rl")
    new.pod("Running")()
    lines = table(cluster(api), find_jobs(cluster(api), patience(), "rolecast"), datetime(2026, 1, 3, tzinfo=UTC))
    assert [line.split() for line in lines] == [
        ["JOB", "STAGE", "STATE", "AGE", "RUN"],
        [old.spec.job_name, "sft", "failed", "2", "d", "s3://store/runs/tiny"],
        [new.spec.job_name, "rl", "running", "25", "h", "s3://store/runs/tiny"],
    ]


def test_an_operator_that_is_not_installed_has_no_jobs(api: FakeApi, command: Command) -> None:
    stage = job(api)
    api.faults.append(Fault(404, 9, "GET", "trainjobs"))
    assert stage.spec.job_name in command("list").output


def test_a_right_that_is_missing_is_told(api: FakeApi, command: Command) -> None:
    api.faults.append(Fault(403, 9, "GET", "trainjobs"))
    assert "lacks a right" in str(command("list").exception)


def test_an_empty_namespace_is_told_as_such(command: Command) -> None:
    assert command("list", "--namespace", "team").output == "no jobs in namespace team\n"


@pytest.mark.parametrize("wanted", ["s3://store/runs/tiny", "s3://store/runs/tiny/", "tiny", "NAME"])
def test_a_live_job_is_cancelled_by_run_or_name(api: FakeApi, command: Command, wanted: str) -> None:
    stage = job(api)
    other = job(api, run="s3://store/runs/other")
    result = command("cancel", stage.spec.job_name if wanted == "NAME" else wanted)
    assert result.exit_code == 0, result.exception
    assert list(api.objects["pytorchjobs"]) == [other.spec.job_name]
    assert api.seen("DELETE", "pytorchjobs")[0].body["propagationPolicy"] == "Foreground"


def beside(api: FakeApi, stage: Stage, owner: str = "", **labels: str) -> str:
    """The Service that `deploy render` has beside a job; its name."""
    (service,) = [item for item in stage.kind.render(stage.spec) if item["kind"] == "Service"]
    service["metadata"]["labels"] |= labels
    if owner:
        service["metadata"]["ownerReferences"] = [{"kind": "PyTorchJob", "name": stage.spec.job_name, "uid": owner}]
    return str(api.put("services", service)["metadata"]["name"])


@pytest.mark.parametrize(
    ("kind", "verb", "end"), [("pytorchjob", "cancel", ""), ("pytorchjob", "delete", "Failed"), ("trainjob", "delete", "Failed")]
)
def test_a_service_that_was_applied_beside_the_job_goes_with_it_and_no_other_does(
    api: FakeApi, command: Command, kind: str, verb: str, end: str
) -> None:
    stage, other = job(api, kind, end=end, stage="rl"), job(api, kind, stage="rl", run="s3://store/runs/other")
    beside(api, stage)
    kept = beside(api, other)
    assert command(verb, "tiny").exit_code == 0
    assert list(api.objects["services"]) == [kept]


@pytest.mark.parametrize(
    ("owner", "labels"),
    [
        ("uid-of-another", {}),
        ("", {"app.kubernetes.io/instance": "another-job"}),
        ("", {"app.kubernetes.io/part-of": "another-project"}),
        ("", {"app.kubernetes.io/component": "gateway"}),
    ],
)
def test_a_service_of_the_name_that_is_anothers_stays(api: FakeApi, command: Command, owner: str, labels: dict[str, str]) -> None:
    name = beside(api, job(api, stage="rl"), owner, **labels)
    assert command("cancel", "tiny").exit_code == 0
    assert name in api.objects["services"]


def test_the_service_of_a_job_that_was_made_anew_meanwhile_stays(api: FakeApi, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = job(api, stage="rl")
    name = beside(api, stage)
    api.keep_deleted = True

    def anew(seconds: float) -> None:
        api.remove("pytorchjobs", stage.spec.job_name)
        stage.existing()

    monkeypatch.setattr("time.sleep", anew)
    assert command("cancel", "tiny").exit_code == 0
    assert name in api.objects["services"]
    assert not api.seen("DELETE", "services")


def test_cancel_waits_until_the_pods_have_saved(api: FakeApi, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = job(api)
    api.keep_deleted = True
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            api.remove("pytorchjobs", stage.spec.job_name)

    monkeypatch.setattr("time.sleep", sleep)
    assert command("cancel", "tiny").output.endswith(f"job {stage.spec.job_name} is gone\n")
    assert len(slept) >= 3


def test_a_job_that_ended_is_deleted_and_not_cancelled(api: FakeApi, command: Command) -> None:
    stage = job(api, end="Failed")
    assert f"has ended; `rolecast job delete {stage.spec.job_name}`" in str(command("cancel", "tiny").exception)
    assert command("delete", "tiny").exit_code == 0
    assert not api.objects["pytorchjobs"]


def test_a_live_job_is_not_deleted_by_mistake(api: FakeApi, command: Command) -> None:
    job(api)
    result = command("delete", "tiny")
    assert isinstance(result.exception, InputError)
    assert "has not ended; `rolecast job cancel" in str(result.exception)
    assert not api.seen("DELETE", "")


def test_of_a_runs_jobs_the_live_one_is_meant_or_the_stages(api: FakeApi, command: Command) -> None:
    first, second = job(api, end="Succeeded"), job(api, stage="rl")
    assert command("cancel", "tiny", "--stage", "sft").exception is not None
    assert command("cancel", "tiny").exit_code == 0
    assert list(api.objects["pytorchjobs"]) == [first.spec.job_name]
    third = job(api, stage="rl", end="Failed")
    assert f"has the jobs {third.spec.job_name}, {first.spec.job_name}; name one" in str(command("delete", "tiny").exception)
    assert second.spec.job_name == third.spec.job_name


def test_a_job_that_is_not_there_is_told_with_the_next_step(command: Command) -> None:
    assert "no job of absent in namespace rolecast; see `rolecast job list" in str(command("cancel", "absent").exception)


@pytest.mark.parametrize("follow", [False, True])
def test_logs_of_a_job_that_ended_are_shown_whole(api: FakeApi, command: Command, follow: bool) -> None:
    stage = job(api, end="Failed")
    pod = f"{stage.spec.job_name}-master-0"
    stage.pod("Failed")()
    api.logs[pod] = [f"2026-01-01T00:00:0{i}Z line {i}" for i in range(3)]
    assert command("logs", "tiny", *(["--follow"] if follow else [])).output == "".join(f"{pod} | line {i}\n" for i in range(3))
