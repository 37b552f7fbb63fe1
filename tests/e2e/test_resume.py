"""A run killed with SIGKILL in any stage goes on from its last committed checkpoint and ends bitwise equal."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

CONFIG = """
name: tiny
lockstep: true
threads: 1
method: {name: decor, prompts: compact, max_tokens: 24, memory_tokens: 128, condenser: extractive, lr: 1.0e-3, clip_low: 0.1, clip_high: 0.1}
model: {max_context: 256, scratch: {hidden: 48, layers: 2, heads: 2, head_dim: 32, feed_forward: 96}}
data: {world: {entities: {train: 150, dev: 60, test: 90}, questions: {train: 60, dev: 8, test: 16}}}
stages:
  sft: {steps: 320, batch: 12, lr: 1.0e-2, optimizer: {name: muon, rest: 1.0}, drills: 32, errors: {stop_early: 0.3, wrong_relation: 0.3}, checkpoint_every: 16, keep: 2}
  rl: {steps: 12, questions: 4, group: 4, dev: 8, eval_every: 3, checkpoint_every: 2, keep: 2, refill: 3}
eval: {n: 16, bootstrap: 100}
"""
RUNNER = """
import sys
from pathlib import Path
from rolecast.config import load_config
from rolecast.schedule import digest
from rolecast.stages import tasks
config = load_config(Path(sys.argv[1]), sys.argv[3:])
run = tasks.prepare(sys.argv[2], config.model_dump_json(), digest(config.schedule))
for stage in config.schedule:
    tasks.train(run, stage.name, stage.kind)
    tasks.evaluate(run, stage.name)
tasks.report(run)
"""


def start(folder: Path, run: Path, *overrides: str) -> subprocess.Popen[bytes]:
    (folder / "config.yaml").write_text(CONFIG)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUNNER, str(folder / "config.yaml"), str(run), *overrides]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(folder: Path, run: Path, *overrides: str) -> None:
    process = start(folder, run, *overrides)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors.decode()[-2000:]


def outcome(run: Path) -> dict[str, str]:
    """Hashes of everything that a run decides; times and paths are left out."""
    files = [run / stage / "model" / "model.safetensors" for stage in ("sft", "rl")]
    files += [run / stage / "metrics.jsonl" for stage in ("sft", "rl")]
    files += [run / "eval" / stage / name for stage in ("sft", "rl") for name in ("result.json", "predictions.jsonl", "traces.json")]
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def kill_when(folder: Path, run: Path, ready: Callable[[], bool], *overrides: str) -> None:
    process = start(folder, run, *overrides)
    deadline = time.monotonic() + 300
    while not ready():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(folder, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def undisturbed(finished: Path) -> dict[str, str]:
    return outcome(finished)


def rows(run: Path, stage: str) -> int:
    file = run / stage / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "world": lambda run: (run / ".world.partial").exists() or (run / "world").exists(),
    "index": lambda run: (run / ".index.partial").exists() or (run / "index").exists(),
    "sft before its first checkpoint": lambda run: rows(run, "sft") >= 1,
    "sft after a checkpoint": lambda run: (run / "sft" / "checkpoints" / "step-000048").exists(),
    "sft inside a checkpoint": lambda run: (run / "sft" / "checkpoints" / ".step-000032.partial").exists(),
    "eval of sft": lambda run: (run / "sft" / "model" / "manifest.json").exists(),
    "rl before its first checkpoint": lambda run: rows(run, "rl") >= 2,
    "rl after a checkpoint": lambda run: (run / "rl" / "checkpoints" / "step-000006").exists(),
    "eval of rl": lambda run: (run / "rl" / "model" / "manifest.json").exists(),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_run_ends_bitwise_equal(moment: str, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    run = tmp_path / "run"
    kill_when(tmp_path, run, lambda: MOMENTS[moment](run))
    assert not (run / "summary.json").exists()
    finish(tmp_path, run)
    assert outcome(run) == undisturbed


@pytest.mark.slow
def test_two_runs_are_bitwise_equal_and_old_checkpoints_are_pruned(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    finish(tmp_path, tmp_path / "run")
    assert outcome(tmp_path / "run") == undisturbed
    for stage in ("sft", "rl"):
        assert len(list((tmp_path / "run" / stage / "checkpoints").glob("step-*"))) == 2
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(summary) == {
        "method", "seed", "stages", "gains", "controls", "budget", "origin", "environment", "segments", "seconds", "step_seconds", "threads",
        "report",
    }  # fmt: skip
    assert summary["threads"] == {"sft": 1, "rl": 1}


@pytest.mark.slow
def test_a_run_goes_on_with_other_questions_over_a_shared_model_and_index(tmp_path: Path, finished: Path) -> None:
    shared = (f"stages.sft.model={finished / 'sft' / 'model'}", f"retriever.index={finished / 'index'}")
    run = tmp_path / "run"
    kill_when(tmp_path, run, lambda: MOMENTS["rl after a checkpoint"](run), *shared)
    assert not (run / "index").exists()
    saved = max(int(path.name.removeprefix("step-")) for path in (run / "rl" / "checkpoints").glob("step-*"))
    finish(tmp_path, run, *shared, "stages.rl.questions=3", "stages.rl.lease_seconds=99")
    summary = json.loads((run / "summary.json").read_text())
    segments = [
        (s["step"], s["settings"]["stages.rl.questions"], s["settings"]["stages.rl.lease_seconds"]) for s in summary["segments"]["rl"]
    ]
    assert segments == [(0, 4, 60.0), (saved, 3, 99.0)]
    assert set(summary["environment"]["shared"]) == {"stages.sft.model", "retriever.index"}
    assert (run / "sft" / "model" / "manifest.json").read_bytes() == (finished / "sft" / "model" / "manifest.json").read_bytes()
    grouped = [json.loads(line)["groups"] for line in (run / "rl" / "metrics.jsonl").read_text().splitlines() if "groups" in line]
    assert max(grouped[saved:]) <= 3 < max(grouped[:saved])


@pytest.mark.slow
def test_a_second_process_is_refused_while_one_works(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = start(tmp_path, run)
    while rows(run, "sft") < 1:
        time.sleep(0.02)
    second = start(tmp_path, run)
    _, errors = second.communicate(timeout=120)
    assert second.returncode != 0
    assert b"in use by another process" in errors
    first.kill()
    first.wait()


LORA = (
    "model.lora={rank: 4, alpha: 16}", "stages.sft.optimizer={name: adamw}", "stages.sft.steps=80", "stages.sft.drills=0",
    "stages.rl.steps=8",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["sft after a checkpoint", "rl after a checkpoint"])
def test_adapters_go_on_too_and_a_stage_ends_with_a_whole_model(moment: str, tmp_path: Path, finished: Path) -> None:
    """Over a model that speaks already: an adapter alone teaches a random one nothing."""
    lora = (*LORA, f"model.path={finished / 'sft' / 'model'}")
    finish(tmp_path, tmp_path / "one", *lora)
    run = tmp_path / "run"
    kill_when(tmp_path, run, lambda: MOMENTS[moment](run), *lora)
    finish(tmp_path, run, *lora)
    assert outcome(run) == outcome(tmp_path / "one")
    kept = [path for stage in ("sft", "rl") for path in (run / stage / "checkpoints").glob("step-*/slots/shared/*.safetensors")]
    assert {path.name for path in kept} == {"adapter_model.safetensors"}
    for stage in ("sft", "rl"):
        assert (run / stage / "model" / "merged" / "shared" / "adapter_config.json").exists()
        assert not (run / stage / "model" / "slots").exists()  # nothing is left apart from the base
