"""A planner is trained, plays plans that are kept, and an answerer is trained on them: commands, a kill, processes, workers, the pipeline."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolecast.data.records import read_questions
from rolecast.wire.coordinator import unpack
from tests.compiled import Compiled
from tests.e2e.cluster import Cluster
from tests.e2e.duet import cluster_of, outcome, rows
from tests.e2e.relay import PRESET, Relay
from tests.weed import S3Server

STAGES = ("sft", "planner", "plans", "answerer")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Relay:
    return Relay(tmp_path_factory.mktemp("relay"))


@pytest.fixture(scope="module")
def run(relay: Relay) -> Path:
    """A run that went through the whole pipeline."""
    path = relay.folder / "run"
    relay.rolecast("pipeline", "run", "--local", "--config", str(PRESET), "--run", str(path))
    return path


@pytest.fixture(scope="module")
def planned(relay: Relay) -> Path:
    """A run whose planner is trained."""
    path = relay.create(relay.folder / "planned")
    relay.train(path, "sft", "planner")
    return path


def questions(run: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted((run / "plans" / "questions").glob("*.jsonl"))}


@pytest.mark.slow
def test_the_answerer_is_trained_on_what_the_planner_found(run: Path) -> None:
    prepared = {split: read_questions(run / "plans" / "questions" / f"{split}.jsonl") for split in ("train", "dev")}
    assert (len(prepared["train"]), len(prepared["dev"])) == (40, 6)
    assert all(set(question.given) == {"query", "documents"} for split in prepared.values() for question in split)
    given = {question.id: question.given for question in prepared["train"]}
    shards = sorted((run / "answerer" / "trajectories").glob("*/trajectories.json.gz"))
    played = [t for shard in shards for t in unpack(shard.read_bytes())]
    assert len(shards) == 2
    assert {thread.role for t in played for thread in t.threads} == {"answerer"}
    assert all(t.searches == 0 and t.question.given == given[t.question.id] for t in played)
    # Steps go on where the planner's ended, so that neither questions nor samples come again.
    assert {t.group.partition(".")[0] for t in played} == {"2", "3"}
    assert any(row.get("grad_norm", 0) > 0 for row in rows(run, "answerer"))


@pytest.mark.slow
def test_models_are_evaluated_on_the_whole_method_and_plans_are_not(relay: Relay, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert list(summary["stages"]) == ["sft", "planner", "answerer"]
    assert {"plans", "answerer"} <= set(summary["seconds"])
    assert summary["stages"]["answerer"]["searches_per_question"] == 1  # from the question's text
    assert summary["controls"]["sampled_tokens"] == sum(
        rows(run, stage)[-1]["tokens/sampled"] for stage in ("planner", "plans", "answerer")
    )
    told = relay.rolecast("eval", str(run), "--stage", "plans", code=2)
    assert told == "rolecast: stage plans prepares questions and has no model; stages with one: sft, planner, answerer\n"
    assert "has no plans model; it has answerer, planner, sft" in relay.rolecast(
        "ask", "What is the twin of Bak Bam?", "--run", str(run), "--stage", "plans", code=2
    )
    assert re.search(r"^answerer:", relay.rolecast("ask", "What is the twin of Bak Bam?", "--run", str(run)), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_plans_that_were_made_before_a_kill_are_not_made_again(relay: Relay, run: Path, planned: Path, tmp_path: Path, number: int) -> None:
    ended = Path(shutil.copytree(planned, tmp_path / "ended"))
    process = relay.start("train", str(ended), "plans")
    first = ended / "plans" / "shards" / "00000" / "manifest.json"
    while not first.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.002)
    process.send_signal(number)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL), told
    assert not (ended / "plans" / "questions").exists()
    made = first.stat().st_mtime_ns
    again = relay.start("train", str(ended), "plans")
    while first.exists():
        assert first.stat().st_mtime_ns == made
        time.sleep(0.002)
    told, _ = again.communicate(timeout=60)
    assert again.returncode == 0, told
    assert questions(ended) == questions(run)
    assert rows(ended, "plans") == rows(run, "plans")
    relay.train(ended, "answerer")
    assert outcome(ended, ("answerer",)) == outcome(run, ("answerer",))


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 3])
def test_of_two_processes_one_plays(relay: Relay, run: Path, planned: Path, tmp_path: Path, zero: int) -> None:
    both = Path(shutil.copytree(planned, tmp_path / "both"))
    told = relay.train_over(both, "plans", zero)
    assert told.count("46/46") == 1
    assert questions(both) == questions(run)


def test_the_pipeline_has_no_evaluation_of_plans(relay: Relay, tmp_path: Path) -> None:
    out = tmp_path / "pipeline.yaml"
    relay.rolecast("pipeline", "compile", "--config", str(PRESET), "--out", str(out))
    tasks = Compiled.read(out.read_text()).tasks
    assert {task["taskInfo"]["name"] for task in tasks.values()} == {
        "prepare", "train-sft", "evaluate-sft", "train-planner", "evaluate-planner", "rollout-plans", "train-answerer", "evaluate-answerer",
        "report", "conclude",
    }  # fmt: skip
    plans = next(task for task in tasks.values() if task["taskInfo"]["name"] == "rollout-plans")
    assert plans["inputs"]["parameters"]["kind"] == {"runtimeValue": {"constant": "rollout"}}
    answerer = next(task for task in tasks.values() if task["taskInfo"]["name"] == "train-answerer")
    assert "train-3" in answerer["dependentTasks"]


@pytest.fixture
def cluster(tmp_path: Path, relay: Relay, weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with cluster_of(relay, "relay", tmp_path, weed, monkeypatch) as made:
        yield made


@pytest.mark.slow
def test_workers_make_the_plans_of_a_run_in_a_store(cluster: Cluster, relay: Relay, tmp_path: Path) -> None:
    extra = {**cluster.weed.environ, "ROLECAST_WORKDIR": str(tmp_path / "here")}
    (tmp_path / "here").mkdir()
    relay.rolecast(
        "run", "create", cluster.run, "--config", str(PRESET), "--set", "rollouts=workers", "--set", "stages.answerer.record=true", **extra
    )
    assert cluster.learner("sft").wait(200) == 0
    cluster.retriever(), cluster.judge()
    worker = cluster.rollout()
    for stage in STAGES[1:]:
        learner = cluster.learner(stage, ranks=1)
        assert learner.wait(200) == 0, learner.tail() + worker.tail()
    assert worker.running
    assert "Traceback" not in worker.tail()
    relay.rolecast("eval", cluster.run, **extra)
