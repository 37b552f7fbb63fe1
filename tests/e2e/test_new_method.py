"""The commands of docs/new_method.md, on what a reader of it has typed, as an installed package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.duet import Duet
from tests.new_method import PACKAGE, written

SMALL = (
    "threads=1", "lockstep=false", "model.scratch.hidden=48", "model.scratch.layers=2", "model.scratch.heads=2", "model.scratch.head_dim=32",
    "model.scratch.feed_forward=96", "data.world.entities={train: 150, dev: 60, test: 90}", "data.world.questions={train: 60, dev: 6, test: 20}",
    "stages.sft.steps=120", "stages.sft.batch=8", "stages.sft.lr=1e-2", "stages.sft.drills=0", "stages.sft.optimizer={name: adamw}",
    "stages.rl.steps=3", "stages.rl.questions=4", "stages.rl.group=4", "stages.rl.dev=6", "stages.rl.eval_every=3", "stages.rl.refill=4", "eval.n=20",
)  # fmt: skip
SETS = [word for override in SMALL for word in ("--set", override)]


class Rewrite(Duet):
    distribution, entry = "rewrite-method", f"rewrite = {PACKAGE}:Rewrite"

    def __init__(self, folder: Path) -> None:
        written(folder / "site")
        super().__init__(folder)


@pytest.mark.slow
def test_it_is_listed_trained_compared_and_asked(tmp_path: Path) -> None:
    reader = Rewrite(tmp_path)
    assert "rewrite-method 0.1 asker, answerer" in reader.rolecast("methods")
    run = tmp_path / "run"
    assert "summary:" in reader.rolecast("demo", "--method", "rewrite", "--run", str(run), *SETS)
    assert set(json.loads((run / "summary.json").read_text())["stages"]) == {"sft", "rl"}
    out = tmp_path / "compare"
    said = reader.rolecast("compare", "--methods", "rewrite,naive_rag", "--seeds", "0", "--budget", "1500", "--out", str(out), *SETS)
    assert "2 runs, held-out questions" in said
    assert (out / "comparison.html").exists()
    [question, *_] = [line for line in reader.rolecast("ask", "--run", str(run)).splitlines() if line.endswith("?")]
    assert "asker:" in reader.rolecast("ask", "--run", str(run), question)
