"""The step of a pipeline that launches a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_stage import Stage, terminated
from fake_api import FakeApi

from rolecast.config import RunConfig
from rolecast.launching.kubernetes import KubernetesLauncher
from rolecast.launching.launcher import Outcome
from rolecast.launching.local_pipeline import compile_pipeline
from rolecast.launching.spec import TrainingJobSpec
from rolecast.methods.naive_rag import NaiveRagConfig
from rolecast.schedule import digest
from rolecast.stages import tasks
from rolecast.stages.run import create

JOB = json.dumps(
    {"image": "rolecast-learner:test", "deadlines": {"queued": 300, "pending": 100, "running": 200}, "backoff": {"retries": 0}}
)


def test_compiling_in_another_process_gives_the_same_bytes(tmp_path: Path) -> None:
    compile_pipeline(tmp_path / "here.yaml", RunConfig().schedule)
    code = f"from pathlib import Path; from rolecast.config import RunConfig; from rolecast.launching.local_pipeline import compile_pipeline; compile_pipeline(Path({str(tmp_path / 'p.yaml')!r}), RunConfig().schedule)"
    environment = {"PYTHONHASHSEED": "7", "PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    assert (tmp_path / "p.yaml").read_text() == (tmp_path / "here.yaml").read_text()


@pytest.fixture
def stage(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(api)
    monkeypatch.setattr("rolecast.launching.launchers.make_launcher", lambda name: only(stage, name))
    return stage


def only(stage: Stage, name: str) -> KubernetesLauncher:
    assert name == "pytorchjob"
    return stage.launch()


def test_a_step_launches_its_stage_and_waits(stage: Stage, tmp_path: Path) -> None:
    stage.then(stage.pod("Running"))
    stage.then(stage.condition("Succeeded"))
    assert tasks.train(stage.spec.run, "sft", "sft", "pytorchjob", JOB, str(tmp_path / "notes.md")) == stage.spec.run
    assert (tmp_path / "notes.md").read_text().startswith(f"# Job {stage.spec.job_name} succeeded")


def test_a_step_whose_job_fails_exits_non_zero_and_leaves_a_report(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.then(stage.pod("Failed", **terminated(137, "OOMKilled")), stage.condition("Failed"))
    with pytest.raises(SystemExit) as caught:
        tasks.train(stage.spec.run, "sft", "sft", "pytorchjob", JOB, str(tmp_path / "notes.md"))
    assert caught.value.code == 3  # more memory is for somebody to give: the step is not run again
    assert "| 137 | OOMKilled |" in (tmp_path / "notes.md").read_text()
    assert "OOMKilled" in capsys.readouterr().err


@pytest.mark.parametrize(("own", "port"), [({}, 8400), ({"coordinator": {"port": 8500}}, 8500)])
def test_a_steps_job_has_the_port_that_policies_let_through(own: dict[str, Any], port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[TrainingJobSpec] = []
    monkeypatch.setattr("rolecast.launching.launchers.make_launcher", lambda name: Noting(specs))
    monkeypatch.setenv("ROLECAST_COORDINATOR_PORT", "8400")
    tasks.train("s3://store/runs/tiny", "rl", "rl", "pytorchjob", json.dumps({**json.loads(JOB), **own}))
    assert [spec.coordinator.port for spec in specs] == [port]


class Noting:
    """A launcher that notes what it is to launch."""

    def __init__(self, specs: list[TrainingJobSpec]) -> None:
        self.specs = specs

    def run(self, spec: TrainingJobSpec) -> Outcome:
        self.specs.append(spec)
        return Outcome(spec.job_name, "pytorchjobs", {})


def test_a_step_launches_in_its_own_namespace_unless_the_job_names_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECAST_NAMESPACE", "profile-a")
    for job in (JOB, json.dumps({**json.loads(JOB), "namespace": "training", "name": "other"})):
        stage.then(
            stage.commit,
            lambda: [
                item.update(status=SUCCEEDED) or stage.api.put("pytorchjobs", item) for item in stage.api.objects["pytorchjobs"].values()
            ],
        )
        tasks.train(stage.spec.run, "sft", "sft", "pytorchjob", job)
    assert [item["metadata"]["namespace"] for item in stage.api.objects["pytorchjobs"].values()] == ["profile-a", "training"]


SUCCEEDED = {"conditions": [{"type": "Succeeded", "status": "True"}]}


@pytest.mark.parametrize(
    ("kind", "launcher", "job", "message"),
    [
        ("eval", "pytorchjob", JOB, "job: kind: Input should be 'sft', 'rollout' or 'rl'"),
        ("sft", "slurm", "{}", "job: image: Field required"),
        ("sft", "slurm", JOB, "no launcher 'slurm'; there are local, pytorchjob, trainjob"),
        ("sft", "pytorchjob", "[]", "a JSON object"),
        ("sft", "pytorchjob", "{", "not JSON"),
        ("sft", "pytorchjob", '{"run": "s3://a"}', "which the pipeline sets"),
        ("sft", "pytorchjob", '{"stage": "rl"}', "which the pipeline sets"),
        ("sft", "pytorchjob", '{"kind": "rl"}', "which the pipeline sets"),
        ("sft", "pytorchjob", '{"image": "x", "gpu": 1}', "job: gpu"),
    ],
)
def test_bad_input_of_a_step_is_one_line(kind: str, launcher: str, job: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, lambda: tasks.train("s3://store/runs/a", "first", kind, launcher, job))


def refused(capsys: pytest.CaptureFixture[str], step: Callable[[], object]) -> str:
    """The one line of a step that refuses its input."""
    with pytest.raises(SystemExit) as caught:
        step()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_step_of_a_stage_that_the_method_does_not_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(create(tmp_path / "run", RunConfig()).path)
    line = refused(capsys, lambda: tasks.train(run, "eval", "rl", "local", "{}"))
    assert "no stage 'eval' in the method's schedule; it has sft, rl" in line


def test_a_config_with_another_schedule_than_the_pipelines_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig(method=NaiveRagConfig())
    run = tmp_path / "run"
    line = refused(capsys, lambda: tasks.prepare(str(run), config.model_dump_json(), digest(RunConfig().schedule)))
    assert "has the stages sft, and this pipeline was compiled for others; compile it with --config" in line
    assert not run.exists()


def test_a_step_that_launches_needs_no_torch() -> None:
    code = """
        import sys
        sys.modules["torch"] = sys.modules["transformers"] = None
        import rolecast.stages.tasks, rolecast.launching.kubernetes, rolecast.launching.render, rolecast.launching.submit
    """
    subprocess.run([sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())], check=True)


def test_a_rollout_stage_takes_one_process_of_a_job_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []

    class Recorder:
        def run(self, spec: Any) -> Any:
            launched.append(spec)
            return type("Outcome", (), {"report": lambda self: ""})()

    monkeypatch.setattr("rolecast.launching.launchers.make_launcher", lambda name: Recorder())
    monkeypatch.setattr(tasks, "_train_here", lambda run, stage: launched.append("here") or "")
    wide = {"image": "x", "nodes": 2, "procs_per_node": 4, "gpus_per_node": 4, "zero_stage": 3, "cpu": "8"}
    for kind in ("rollout", "rl"):
        tasks.train("s3://b/runs/a", "plans", kind, "pytorchjob", json.dumps(wide))
    one, all_ = launched
    assert (one.nodes, one.procs_per_node, one.gpus_per_node, one.zero_stage, one.cpu) == (1, 1, 1, None, "8")
    assert one.samples
    assert (all_.nodes, all_.procs_per_node, all_.gpus_per_node, all_.zero_stage) == (2, 4, 4, 3)
    tasks.train("/runs/a", "plans", "rollout", "pytorchjob", json.dumps({"image": "x"}))
    assert launched[-1].gpus_per_node == 0
    tasks.train("/runs/a", "plans", "rollout", "local", json.dumps({"procs_per_node": 2}))
    assert launched[-1] == "here"


@pytest.mark.parametrize("job", [{"procs_per_node": 2}, {"zero_stage": 2}])
def test_local_jobs_of_several_processes_or_with_deepspeed_are_launched(job: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []

    class Recorder:
        def run(self, spec: Any) -> Any:
            launched.append(spec)
            return type("Outcome", (), {"report": lambda self: ""})()

    monkeypatch.setattr("rolecast.launching.launchers.make_launcher", lambda name: Recorder())
    tasks.train("/runs/a", "sft", "sft", "local", json.dumps(job))
    assert (launched[0].procs_per_node, launched[0].zero_stage) == (job.get("procs_per_node", 1), job.get("zero_stage"))
