"""CoDA from SFT through RL to an evaluation, with a model too small to be right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rolecast.config import make_config
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.run import prepare
from rolecast.stages.train import train

CONFIG: dict[str, Any] = {
    "name": "tiny",
    "lockstep": True,
    "threads": 1,
    "method": {"name": "coda", "prompts": "compact", "max_tokens": 24, "max_turns": 3, "lr": 1e-3, "minibatches": 1},
    "model": {"max_context": 256, "scratch": {"hidden": 32, "layers": 2, "heads": 2, "head_dim": 16, "feed_forward": 64}},
    "data": {"world": {"entities": {"train": 60, "dev": 30, "test": 30}, "questions": {"train": 24, "dev": 4, "test": 8}}},
    "stages": {
        "sft": {"steps": 60, "batch": 8, "lr": 2e-2, "optimizer": {"name": "muon", "rest": 1.0}},
        "rl": {"steps": 2, "questions": 2, "group": 4, "dev": 4, "eval_every": 2, "refill": 3},
    },
    "eval": {"n": 8, "bootstrap": 100},
}
ROLES = {"hierarchy": ("planner", "executor"), "nested": ("planner", "lead", "executor"), "monolithic": ("monolith",)}
OPTIONS: dict[str, dict[str, Any]] = {"hierarchy": {}, "nested": {"depth": 2, "tokens": "mean"}, "monolithic": {"structure": "monolithic"}}


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """A run sets threads and determinism for its whole process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("variant", OPTIONS)
def test_a_whole_run(variant: str, tmp_path: Path) -> None:
    config = make_config({**CONFIG, "method": {**CONFIG["method"], **OPTIONS[variant]}}, "here")
    run = prepare(str(tmp_path / "run"), config, inputs)
    for stage in config.schedule:
        train(run, stage.name)
        evaluate(run, stage.name)
    rows = [json.loads(line) for line in (tmp_path / "run" / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["grad_norm"] > 0 and row["method/context/" + ROLES[variant][0]] > 0 for row in rows[1:])
    assert rows[1]["ratio"] == pytest.approx(1, abs=1e-4)
    for stage in ("sft", "rl"):
        result = json.loads((tmp_path / "run" / "eval" / stage / "result.json").read_text())
        assert sum(part["n"] for part in result["by_hops"].values()) == 8
        figures = result["method"]
        assert {role for role in ROLES[variant] if f"context/{role}/max" in figures} >= set(ROLES[variant][:1])
        assert ("executors" in figures) == (variant != "monolithic")


def test_prompts_alone_are_a_run_without_training(tmp_path: Path) -> None:
    """The ablation of 4.3.2: what SFT without a step ends with is the model that it starts from."""
    stages = {**CONFIG["stages"], "sft": {"steps": 0}}
    config = make_config({**CONFIG, "method": {**CONFIG["method"], "prompts": "instruct"}, "model": {**CONFIG["model"], "max_context": 4096},
                          "stages": stages}, "here")  # fmt: skip
    run = prepare(str(tmp_path / "run"), config, inputs)
    train(run, "sft")
    evaluate(run, "sft")
    result = json.loads((tmp_path / "run" / "eval" / "sft" / "result.json").read_text())
    assert (result["n"], result["status"], result["valid"]) == (8, {"ok": 8}, 0.0)  # it speaks at random
