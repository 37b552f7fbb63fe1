"""A run in lockstep that is killed at twenty random updates, one after the other, ends bitwise as one that was left alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from lives import PLACES
from test_resume import CONFIG, outcome

from rolecast.processes import PARENT
from rolecast.stages.metrics import read_metrics

SCRIPT = Path(__file__).with_name("lives.py")
KILLS, SEED = {"sft": 5, "rl": 15}, 11
SFT, RL = 320, 24  # steps


def lived(folder: Path, name: str, kills: list[tuple[str, int, str]]) -> Path:
    config = folder / "config.yaml"
    config.write_text(CONFIG.replace("rl: {steps: 12,", f"rl: {{steps: {RL},"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", PARENT: str(os.getpid())}
    command = [sys.executable, str(SCRIPT), str(config), str(folder / name), json.dumps(kills)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / name


def drawn(rng: random.Random) -> list[tuple[str, int, str]]:
    """In the order of the run, in steps after which there is a checkpoint to come; no step twice."""
    kills = []
    for stage, steps in (("sft", SFT - 16), ("rl", RL - 2)):
        kills += [(stage, step, rng.choice(PLACES)) for step in sorted(rng.sample(range(steps), KILLS[stage]))]
    return kills


@pytest.mark.slow
def test_a_run_killed_in_twenty_random_updates_ends_bitwise_equal(tmp_path: Path) -> None:
    kills = drawn(random.Random(SEED))
    assert len(kills) == 20
    alone, often = lived(tmp_path, "alone", []), lived(tmp_path, "often", kills)
    assert outcome(often) == outcome(alone)
    learned = [row for row in read_metrics(alone / "rl") if "grad_norm" in row]
    assert len(learned) > RL // 2  # there was something to agree on
