"""The platform as processes: SFT and RL by a two-rank learner with ZeRO-2, over HTTP and S3, with parts killed on the way."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rolecast.config import RunConfig, make_config
from rolecast.coordinator.client import HttpCoordinator
from rolecast.errors import RolecastError
from rolecast.methods.registry import make_method
from rolecast.retriever.index import LocalRetriever
from rolecast.rollout.render import Renderer
from rolecast.stages.inputs import inputs
from rolecast.stages.run import Run, create
from rolecast.stages.train import train
from rolecast.stages.world import world
from rolecast.types import Trajectory
from rolecast.wire.coordinator import unpack
from tests.e2e.cluster import RELEASE_KEY, Cluster
from tests.e2e.replay import replayed
from tests.weed import S3Server

pytestmark = pytest.mark.slow
STEPS = 3
ERRORS = {"stop_early": 0.3, "wrong_relation": 0.3}
COMMON: dict[str, Any] = {
    "name": "slice",
    "method": {
        "name": "decor", "prompts": "compact", "max_tokens": 24, "memory_tokens": 128, "condenser": "extractive", "lr": 1e-4,
        "clip_low": 0.1, "clip_high": 0.1,
    },
    "data": {"world": {"entities": {"train": 150, "dev": 60, "test": 90}, "questions": {"train": 60, "dev": 8, "test": 16}}},
}  # fmt: skip
SCRATCH = {"hidden": 192, "layers": 3, "heads": 3, "head_dim": 64, "feed_forward": 384}  # the demo's


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the demo's size that knows its format: RL needs rollouts of which some are right in form."""
    config = {
        **COMMON, "threads": 1, "model": {"max_context": 256, "scratch": SCRATCH},
        "stages": {"sft": {"steps": 200, "batch": 12, "lr": 5e-3, "optimizer": {"name": "muon", "rest": 1.0}, "errors": ERRORS}},
    }  # fmt: skip
    return train(create(tmp_path_factory.mktemp("start") / "run", make_config(config, "start")), "sft")


def config_of(model: Path) -> RunConfig:
    config = {
        **COMMON, "threads": 1, "rollouts": "workers", "learner": {"name": "deepspeed", "zero": 2},
        "model": {"max_context": 256, "path": str(model)},
        "stages": {
            "sft": {"steps": 20, "batch": 8, "lr": 1e-4, "checkpoint_every": 8, "errors": ERRORS},
            "rl": {
                "steps": STEPS, "questions": 4, "group": 4, "dev": 8, "eval_every": 3, "checkpoint_every": 1, "refill": 3,
                "lease_seconds": 6, "lease_tries": 5, "record": True,
            },
        },
    }  # fmt: skip
    return make_config(config, "slice")


@pytest.fixture
def cluster(tmp_path: Path, weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in weed.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROLECAST_WORKDIR", str(tmp_path / "here"))
    bucket = weed.make_bucket(f"platform-{uuid.uuid4().hex[:8]}")
    made = Cluster(tmp_path, weed, f"s3://{bucket}/runs/slice")
    yield made
    made.stop()


def metric(cluster: Cluster, name: str) -> float:
    """A number of the coordinator's; −1 while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.coordinator_port}/metrics", timeout=2) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return -1
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"rolecast_coordinator_{name} ")), -1)


def version(cluster: Cluster) -> str:
    """What the coordinator has workers play with; nothing while there is none."""
    try:
        info = HttpCoordinator(f"http://127.0.0.1:{cluster.coordinator_port}", RELEASE_KEY, patience=0).run_info()
    except RolecastError:
        return ""
    return info.version.name if info.version else ""


def recorded(run: Run, folder: Path) -> dict[int, list[Trajectory]]:
    assert run.store is not None
    shards = {}
    for step in range(STEPS):
        key = f"rl/trajectories/step-{step:06d}"
        shards[step] = unpack((run.store.fetch(key, folder / key) / "trajectories.json.gz").read_bytes())
    return shards


def rows_of(run: Run, stage: str) -> list[dict[str, Any]]:
    assert run.store is not None
    data = run.store.get(f"{stage}/metrics.jsonl")
    assert data is not None
    return [json.loads(line) for line in data.splitlines()]


def test_a_run_over_processes_survives_the_loss_of_each(cluster: Cluster, model: Path, tmp_path: Path) -> None:
    run = create(cluster.run, config_of(model))
    world(run)
    inputs(run)
    assert cluster.learner("sft").wait(300) == 0
    assert run.store is not None
    assert run.store.committed("sft/model")

    retriever, _, worker = cluster.retriever(), cluster.judge(), cluster.rollout()
    learner = cluster.learner("rl")

    # In the middle of the second step the retriever goes, so the step cannot end; then the worker goes too.
    cluster.until(lambda: version(cluster) == "slice/2.1" and metric(cluster, "leases_held") > 0, learner, 200)
    retriever.kill()
    time.sleep(1)
    worker.kill()
    accepted = metric(cluster, "accepted_total")
    cluster.rollout()
    time.sleep(1)
    cluster.retriever()
    cluster.until(lambda: metric(cluster, "accepted_total") > accepted, learner, 120)

    # Then the learner goes, after the checkpoint of the second step, and comes back on an empty disk.
    cluster.until(lambda: run.store.committed("rl/checkpoints/step-000002"), learner, 200)  # type: ignore[union-attr]
    learner.kill()
    assert not run.store.committed("rl/model")
    assert cluster.learner("rl").wait(300) == 0
    assert run.store.committed("rl/model")

    check_steps(run)
    shards = recorded(run, tmp_path)
    check_groups(shards)
    check_versions(shards)
    check_rewards(run, shards, tmp_path)


def check_steps(run: Run) -> None:
    """Every step trained once: one row each, and the first attempt's rows up to its last checkpoint are kept."""
    assert [row["step"] for row in rows_of(run, "rl")] == list(range(STEPS + 1))
    assert all(row["grad_norm"] > 0 for row in rows_of(run, "rl")[1:])


def check_groups(shards: dict[int, list[Trajectory]]) -> None:
    """No rollout is lost and none is there twice."""
    for trajectories in shards.values():
        groups = {t.group for t in trajectories}
        assert groups
        assert sorted((t.group, t.member) for t in trajectories) == sorted((group, member) for group in groups for member in range(4))


def check_versions(shards: dict[int, list[Trajectory]]) -> None:
    """Each step was sampled by the weights of the step before, the last one by the third attempt's. SFT was the first."""
    sampled_by = {step: {action.version for t in trajectories for action in t.actions} for step, trajectories in shards.items()}
    assert sampled_by == {0: {"slice/2.0"}, 1: {"slice/2.1"}, 2: {"slice/3.2"}}


def check_rewards(run: Run, shards: dict[int, list[Trajectory]], folder: Path) -> None:
    """The same samples, retrieved for and judged in this process, earn the same."""
    assert run.store is not None
    retriever = LocalRetriever.open(run.store.fetch("index", folder / "index-here"), "bm25")
    renderer = Renderer(AutoTokenizer.from_pretrained(run.store.fetch("sft/model", folder / "model-here")))
    method = make_method(run.config.method)
    everything = [t for trajectories in shards.values() for t in trajectories]
    again = replayed(method, renderer, retriever, everything, run.config.model.max_context)
    assert any(t.status == "ok" for t in everything)
    for ours, theirs in zip(again, everything, strict=True):
        assert (ours.status, ours.answer, ours.retrieved) == (theirs.status, theirs.answer, theirs.retrieved)
        assert [thread.ids for thread in ours.threads] == [thread.ids for thread in theirs.threads]
        assert ours.rewards == theirs.rewards
        assert method.credit([ours]) == method.credit([theirs])


def test_nodes_with_disks_of_their_own_resume_from_what_each_uploaded(cluster: Cluster, model: Path) -> None:
    run = create(cluster.run, config_of(model))
    assert run.store is not None
    first, second = cluster.nodes("sft", 2)
    cluster.until(lambda: run.store.committed("sft/checkpoints/step-000008"), first, 200)  # type: ignore[union-attr]
    assert run.store.committed("sft/checkpoints/step-000008.node-1")  # uploaded before the checkpoint counts
    for node in (first, second):
        node.kill()
    assert not run.store.committed("sft/model")
    first, second = cluster.nodes("sft", 2)
    assert [node.wait(300) for node in (first, second)] == [0, 0]
    assert [row["step"] for row in rows_of(run, "sft")] == [0, 10]
    assert run.store.committed("sft/model")
    assert cluster.nodes("sft", 1)[0].wait(100) == 0  # it is done, for any number of ranks


def test_shards_of_two_ranks_are_refused_by_one(cluster: Cluster, model: Path) -> None:
    run = create(cluster.run, config_of(model))
    assert run.store is not None
    learner = cluster.learner("sft")
    cluster.until(lambda: run.store.committed("sft/checkpoints/step-000008"), learner, 200)  # type: ignore[union-attr]
    learner.kill()
    alone = cluster.learner("sft", ranks=1)
    assert alone.wait(200) != 0
    assert "was written by 2 ranks, this job has 1; start it with 2" in alone.tail()


def test_a_learner_that_is_told_to_end_saves_and_goes_on(cluster: Cluster, model: Path) -> None:
    config = config_of(model)
    longer = config.sft("sft").model_copy(update={"steps": 60, "checkpoint_every": 1000})
    run = create(cluster.run, config.model_copy(update={"stages": {**config.stages, "sft": longer}}))
    learner = cluster.learner("sft")
    # A row is there after the first step; the progress bar says nothing for ten seconds, in which a fast machine is done.
    cluster.until(lambda: any(file.stat().st_size for file in cluster.folder.glob("work-*/*/sft/metrics.jsonl")), learner, 120)
    assert learner.stop(60) != 0
    assert run.store is not None
    [checkpoint] = run.store.artifacts("sft/checkpoints")
    assert "rolecast: told to end: sft is saved at step" in learner.tail()
    shutil.rmtree(os.environ["ROLECAST_WORKDIR"], ignore_errors=True)
    assert cluster.learner("sft").wait(200) == 0
    steps = [row["step"] for row in rows_of(run, "sft")]
    assert steps == sorted(set(steps))
    assert int(checkpoint[-6:]) < 60
    assert run.store.committed("sft/model")
