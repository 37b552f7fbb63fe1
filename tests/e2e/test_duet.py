"""Two slots through everything that one slot goes through: stages, processes, a kill, workers, evaluation, serving, the pipeline."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.compiled import Compiled
from tests.e2e.cluster import Cluster
from tests.e2e.duet import PRESET, WHOLE, Duet, cluster_of, outcome, rows, slots
from tests.weed import S3Server

STAGES = ("warmup", "duet", "solo")
KINDS = {"lora": (), "whole": (WHOLE,)}


@pytest.fixture(scope="module")
def duet(tmp_path_factory: pytest.TempPathFactory) -> Duet:
    return Duet(tmp_path_factory.mktemp("duet"))


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, duet: Duet) -> Path:
    """A run that went through the whole pipeline."""
    path = duet.folder / str(request.param)
    overrides = [word for override in KINDS[request.param] for word in ("--set", override)]
    told = duet.rolecast("pipeline", "run", "--local", "--config", str(PRESET), "--run", str(path), *overrides)
    assert "95 % interval" in told
    assert "peft_config" not in told
    return path


@pytest.fixture(scope="module")
def warm(duet: Duet) -> Path:
    """A run whose first stage is trained, with adapters."""
    path = duet.create(duet.folder / "warm")
    duet.train(path, "warmup")
    return path


def copy(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


@pytest.mark.slow
def test_every_stage_leaves_a_team_of_two_slots(run: Path) -> None:
    models = {stage: slots(run / stage / "model") for stage in STAGES}
    assert {tuple(found) for found in models.values()} == {("scout", "teller")}
    bases = {(run / stage / "model" / "model.safetensors").read_bytes() for stage in STAGES}
    assert len(bases) == 1  # nothing is merged
    [best] = (run / "duet" / "best").iterdir()
    kept = slots(best)
    assert set(kept) == {"critic", "scout", "teller"}
    assert {name: kept[name] for name in ("scout", "teller")} == models["duet"]


@pytest.mark.slow
def test_each_stage_trains_its_slots_and_leaves_the_others(run: Path) -> None:
    moved = slots(run / "duet" / "checkpoints" / "step-000003")
    start = slots(run / "warmup" / "model")
    assert {name for name in moved if moved[name] != start.get(name)} == {"critic", "scout", "teller"}
    assert set(slots(run / "solo" / "checkpoints" / "step-000002")) == {"teller"}
    assert slots(run / "solo" / "model")["scout"] == slots(run / "duet" / "model")["scout"]


@pytest.mark.slow
def test_both_objectives_have_rates_and_numbers_of_their_own(run: Path) -> None:
    assert [row["step"] for row in rows(run, "duet")] == [0, 1, 2, 3, 4]
    for row in rows(run, "duet")[1:]:
        assert row["search/lr"] == 1e-3
        assert row["search/critic/lr"] == 3e-3
        assert row.get("answer/lr", 5e-4) == 5e-4
        assert row["search/grad_norm"] > 0
    assert any(row.get("answer/grad_norm", 0) > 0 for row in rows(run, "duet"))
    assert any(row.get("answer/kl", 0) > 0 for row in rows(run, "duet"))
    assert any(row.get("grad_norm", 0) > 0 for row in rows(run, "solo"))


@pytest.mark.slow
def test_the_report_tells_of_each_stage_and_objective(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert list(summary["stages"]) == list(STAGES)
    assert set(summary["seconds"]) == {"world", "index", *STAGES, *(f"eval_{stage}" for stage in STAGES)}
    sampled = [rows(run, stage)[-1]["tokens/sampled"] for stage in ("duet", "solo")]
    assert summary["controls"]["sampled_tokens"] == sum(sampled)
    assert {name for name in summary["controls"] if name.startswith("clip_fraction")} == {
        "clip_fraction", "clip_fraction_search", "clip_fraction_answer",
    }  # fmt: skip
    assert None not in summary["controls"].values()


@pytest.mark.slow
def test_a_trained_team_can_be_asked(duet: Duet, run: Path) -> None:
    for stage in ("warmup", "solo"):
        told = duet.rolecast("ask", "What is the twin of Bak Bam?", "--run", str(run), "--stage", stage).splitlines()
        assert [line.partition(":")[0] for line in told if line.startswith(("scout", "teller", "answer"))] == [
            "scout", "scout", "teller", "answer",
        ]  # fmt: skip


def test_the_pipelines_steps_are_the_schedules(duet: Duet, tmp_path: Path) -> None:
    out = tmp_path / "pipeline.yaml"
    duet.rolecast("pipeline", "compile", "--config", str(PRESET), "--out", str(out))
    pipeline = next(document for document in yaml.safe_load_all(out.read_text()) if "root" in document)
    assert pipeline["pipelineInfo"]["name"] == "rolecast-warmup-duet-solo-eval"
    tasks = Compiled.read(out.read_text()).tasks
    named = {task["taskInfo"]["name"]: task["inputs"]["parameters"] for task in tasks.values()}
    given = {
        name: {key: value["runtimeValue"]["constant"] for key, value in named[name].items() if key in ("stage", "kind")} for name in named
    }
    assert {name: found for name, found in given.items() if name.startswith("train")} == {
        "train-warmup": {"stage": "warmup", "kind": "sft"},
        "train-duet": {"stage": "duet", "kind": "rl"},
        "train-solo": {"stage": "solo", "kind": "rl"},
    }
    assert tasks["train-2"]["dependentTasks"] == ["evaluate", "train"]


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 2, 3])
def test_two_processes_take_the_steps_that_one_takes(duet: Duet, warm: Path, tmp_path: Path, zero: int) -> None:
    alone, both = copy(warm, tmp_path / "alone"), copy(warm, tmp_path / "both")
    told = duet.train(alone, "duet")
    assert re.search(r"4/4 .* search/clip_fraction \S+ .*dev/em", told)  # the progress bar has each objective's
    duet.train_over(both, "duet", zero)
    first, other = rows(alone, "duet")[1], rows(both, "duet")[1]
    for name in ("search/grad_norm", "search/critic/grad_norm", "search/loss", "answer/grad_norm", "answer/kl"):
        assert other[name] == pytest.approx(first[name], rel=1e-3, abs=1e-6), name
    assert len(rows(both, "duet")) == 5
    told = duet.train_over(both, "solo", zero)
    assert "peft_config" not in told
    assert set(slots(both / "solo" / "model")) == {"scout", "teller"}


@pytest.mark.slow
@pytest.mark.parametrize("zero", [2, 3])
def test_two_processes_train_whole_models_too(duet: Duet, tmp_path: Path, zero: int) -> None:
    path = duet.create(tmp_path / "run", WHOLE, "stages.warmup.steps=4", "stages.duet.steps=2", "stages.solo.steps=2")
    for stage in STAGES:
        duet.train_over(path, stage, zero)
    assert set(slots(path / "solo" / "model")) == {"scout", "teller"}
    assert slots(path / "solo" / "model")["scout"] == slots(path / "duet" / "model")["scout"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_that_is_ended_goes_on_bitwise(duet: Duet, tmp_path: Path, number: int, kind: str) -> None:
    undisturbed = duet.create(tmp_path / "one", *KINDS[kind])
    duet.train(undisturbed, "warmup")
    ended = copy(undisturbed, tmp_path / "other")
    duet.train(undisturbed, "duet", "solo")
    process = duet.start("train", str(ended), "duet")
    while not (ended / "duet" / "checkpoints" / "step-000002").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    process.send_signal(number)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL), told
    assert not (ended / "duet" / "model").exists()
    duet.train(ended, "duet", "solo")
    assert outcome(ended, STAGES) == outcome(undisturbed, STAGES)


@pytest.mark.slow
@pytest.mark.parametrize("zero", [2, 3])
def test_two_processes_that_are_told_to_end_go_on_bitwise(duet: Duet, warm: Path, tmp_path: Path, zero: int) -> None:
    undisturbed, ended = copy(warm, tmp_path / "one"), copy(warm, tmp_path / "other")
    duet.train_over(undisturbed, "duet", zero)
    process = duet.start_over(ended, "duet", zero)
    while not (ended / "duet" / "checkpoints" / "step-000001").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=120)
    assert "the same command goes on from there" in told
    assert not (ended / "duet" / "model").exists()
    duet.train_over(ended, "duet", zero)
    assert outcome(ended, ("duet",)) == outcome(undisturbed, ("duet",))
    last = [run / "duet" / "checkpoints" / "step-000003" for run in (ended, undisturbed)]
    assert slots(last[0]) == slots(last[1])


@pytest.fixture
def cluster(tmp_path: Path, duet: Duet, weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with cluster_of(duet, "duet", tmp_path, weed, monkeypatch) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_workers_play_both_slots_over_http(cluster: Cluster, duet: Duet, tmp_path: Path, kind: str) -> None:
    extra = {**cluster.weed.environ, "ROLECAST_WORKDIR": str(tmp_path / "here")}
    (tmp_path / "here").mkdir()
    overrides = [*KINDS[kind], "rollouts=workers", "stages.duet.steps=2", "stages.duet.record=true", "stages.solo.steps=2"]
    duet.rolecast("run", "create", cluster.run, "--config", str(PRESET), *[w for o in overrides for w in ("--set", o)], **extra)
    assert cluster.learner("warmup").wait(200) == 0
    cluster.retriever(), cluster.judge()
    worker = cluster.rollout()
    for stage in ("duet", "solo"):
        learner = cluster.learner(stage)
        assert learner.wait(200) == 0, learner.tail() + worker.tail()
    assert worker.running
    assert "Traceback" not in worker.tail()
    duet.rolecast("eval", cluster.run, **extra)
    told = duet.rolecast("ask", "What is the twin of Bak Bam?", "--run", cluster.run, **extra)
    assert re.search(r"^teller:", told, re.MULTILINE)
