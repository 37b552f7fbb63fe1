"""Whole runs of DAC in this process, on a tiny model that has learned the form of replies and little else.

Twelve passages of a world of ninety hold the answer often enough by chance, so both roles have something to learn from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from rolecast.config import RunConfig, make_config
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.metrics import read_metrics
from rolecast.stages.run import Run, create
from rolecast.stages.train import train
from rolecast.types import Trajectory
from rolecast.weights.models import CPU, read_model
from rolecast.weights.team import slots_in
from rolecast.wire.coordinator import unpack

METHOD = {
    "name": "dac", "prompts": "compact", "max_turns": 2, "k": 12, "max_tokens": 32, "observation_tokens": 64, "generator_samples": 3,
    "generator_lr": 2e-3, "searcher_lr": 2e-3, "critic_lr": 2e-3, "minibatches": 1,
}  # fmt: skip
SFT = {
    "adapters": False, "steps": 150, "batch": 16, "lr": 1e-2, "checkpoint_every": 1000,
    "errors": {"stop_early": 0.8, "guess": 0.6, "abstain": 0.3}, "optimizer": {"schedule": "linear", "warmup": 10, "decay_from": 0.5},
}  # fmt: skip
RL = {"steps": 2, "questions": 8, "group": 2, "dev": 4, "eval_every": 2, "checkpoint_every": 1000, "record": True}


def config(method: Mapping[str, Any], rl: Mapping[str, Any], lora: Mapping[str, Any] | None, sft: str = "") -> RunConfig:
    return make_config(
        {
            "name": "dac-tiny", "threads": 1, "method": {**METHOD, **method},
            "model": {"max_context": 512, "lora": lora, "scratch": {"hidden": 48, "layers": 2, "heads": 2, "head_dim": 32, "feed_forward": 96}},
            "data": {"world": {"entities": dict.fromkeys(("train", "dev", "test"), 30), "questions": {"train": 24, "dev": 4, "test": 6}}},
            "stages": {"sft": {**SFT, "model": sft or None}, "rl": {**RL, **rl}}, "eval": {"n": 6, "bootstrap": 100},
        },
        "here",
    )  # fmt: skip


def made(folder: Path, *args: Any) -> Run:
    run = create(folder, config(*args))
    inputs(run)
    return run


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the SFT model of all runs lies."""
    run = made(tmp_path_factory.mktemp("sft") / "run", {}, {}, {"rank": 4, "alpha": 8})
    torch.use_deterministic_algorithms(True)
    return str(train(run, "sft"))


def played(run: Run, step: int) -> Sequence[Trajectory]:
    return unpack((run.stage("rl") / "trajectories" / f"step-{step:06d}" / "trajectories.json.gz").read_bytes())


@pytest.mark.parametrize("lora", [{"rank": 4, "alpha": 8}, None], ids=["adapters", "whole"])
def test_a_run_trains_both_slots_in_one_step(tmp_path: Path, taught: str, lora: dict[str, Any] | None) -> None:
    run = made(tmp_path / "run", {"imitation": 0.05, "prefix_answers": "samples"}, {}, lora, taught)
    train(run, "sft")
    train(run, "rl")
    _, *rows, last = read_metrics(run.stage("rl"))
    for name in ("searcher/grad_norm", "searcher/critic/grad_norm", "generator/grad_norm"):
        assert max(row[name] for row in (*rows, last)) > 0, name
    assert {"method/w_insufficient", "method/w_hard", "method/c_hard", "method/retrieval_em"} <= last.keys()
    best = run.model("rl")
    assert slots_in(best) == ["generator", "searcher"]
    if lora is None:
        base, *slots = (
            read_model(place, torch.float32, CPU).state_dict() for place in (best, best / "slots/searcher", best / "slots/generator")
        )
        assert base.keys() == slots[0].keys() == slots[1].keys()
    evaluated = json.loads((evaluate(run, "rl") / "result.json").read_text())
    assert {"abstention", "retrieval_em"} <= evaluated["method"].keys()
    assert evaluated["valid"] > 0.2


def test_the_budget_counts_all_that_trained_slots_sampled_probes_too(tmp_path: Path, taught: str) -> None:
    run = made(tmp_path / "run", {}, {}, {"rank": 4, "alpha": 8}, taught)
    train(run, "sft")
    train(run, "rl")
    rows = read_metrics(run.stage("rl"))
    threads = [thread for step in (0, 1) for t in played(run, step) for thread in t.threads]
    kinds = {thread.key.partition("=")[0] for thread in threads if thread.probe}
    assert {"sample", "noisy", "prefix"} <= kinds
    assert {thread.slot for thread in threads} == {"searcher", "generator"}
    assert rows[-1]["tokens/sampled"] == sum(len(action.ids) for thread in threads for action in thread.actions)


# The collapse that Theorem 1 foretells: without augmentation nothing weighs against abstaining, and a generator that is seldom right
# unlearns to answer.


@pytest.mark.slow
def test_the_monitor_warns_before_recall_has_halved(tmp_path: Path, taught: str, caplog: pytest.LogCaptureFixture) -> None:
    planted = {"augmentation": False, "max_turns": 1, "generator_samples": 4, "generator_lr": 2.5e-4, "searcher_lr": 1e-5}
    run = made(tmp_path / "run", planted, {"steps": 70, "record": False, "eval_every": 70}, None, taught)
    train(run, "sft")
    train(run, "rl")
    rows = read_metrics(run.stage("rl"))[1:]
    recall = [(row["step"], found) for row in rows if (found := row.get("method/non_abstention_recall")) is not None]
    smooth = [(step, fmean(value for _, value in recall[n - 9 : n + 1])) for n, (step, _) in enumerate(recall) if n >= 9]
    start = smooth[0][1]
    halved = next((step for step, value in smooth if value < start / 2), None)
    warned = next((row["step"] for row in rows if row.get("alarm/over_abstention")), None)
    assert start > 0.5
    assert halved is not None, "nothing collapsed, so nothing is shown"
    assert warned is not None
    assert warned < halved
    assert sum("earned more by abstaining" in record.message for record in caplog.records) == 1
