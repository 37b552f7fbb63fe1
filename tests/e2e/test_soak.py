"""Fifty RL steps with a rate of 0: nothing moves, so ratio, mismatch and dev score are as flat as the first step has them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_resume import CONFIG

from rolecast.config import load_config
from rolecast.learner.learner import Learner, make_learner
from rolecast.schedule import digest
from rolecast.stages import rl, tasks
from rolecast.stages.metrics import read_metrics
from rolecast.stages.rl import GATE
from rolecast.types import Objective

STEPS = 50


@pytest.mark.slow
def test_a_soak_without_a_rate_stays_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def still(objectives: Sequence[Objective], *given: Any, **named: Any) -> Learner:
        return make_learner([replace(o, lr=0.0) for o in objectives], *given, **named)

    monkeypatch.setattr(rl, "make_learner", still)
    (tmp_path / "config.yaml").write_text(CONFIG.replace("rl: {steps: 12,", f"rl: {{steps: {STEPS},"))
    config, run = load_config(tmp_path / "config.yaml"), str(tmp_path / "run")
    tasks.prepare(run, config.model_dump_json(), digest(config.schedule))
    for stage in config.schedule:
        tasks.train(run, stage.name, stage.kind)
    rows = read_metrics(tmp_path / "run" / "rl")
    assert rows[-1]["step"] == STEPS
    updates = [row for row in rows if "ratio" in row]
    assert len(updates) > STEPS // 2
    assert all(row["lr"] == 0 for row in updates)
    assert all(row["grad_norm"] > 0 for row in updates)  # there was something that a rate would have applied
    for row in updates:
        assert abs(row["ratio"] - 1) <= GATE
        assert row["sampler_mismatch"] <= GATE
        assert row["clip_fraction"] == 0
        assert row["refused"] == 0
    first, last = updates[: len(updates) // 2], updates[len(updates) // 2 :]
    means = [sum(row["sampler_mismatch"] for row in half) / len(half) for half in (first, last)]
    assert means[1] <= 2 * means[0] + 1e-6  # nor does it creep up
    scores = {row["dev/em"] for row in rows if "dev/em" in row}
    assert len(scores) == 1
    weights = [run_ / "model.safetensors" for run_ in (tmp_path / "run" / "sft" / "model", tmp_path / "run" / "rl" / "model")]
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in weights}) == 1
