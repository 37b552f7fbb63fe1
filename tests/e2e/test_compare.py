"""`rolecast compare` and the studies from end to end: interrupted and gone on, nothing done twice, and what they write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
TINY = [
    "threads=1",
    "model.scratch={hidden: 48, layers: 2, heads: 2, head_dim: 32, feed_forward: 96}",
    "data.world={entities: {train: 150, dev: 60, test: 90}, questions: {train: 60, dev: 6, test: 20}}",
    "stages.sft.steps=30",
    "stages.sft.drills=10",
    "stages.rl={questions: 4, group: 4, dev: 6, eval_every: 1, checkpoint_every: 1, refill: 0, idle_steps: 50, guard: {fraction: 0}}",
    "eval.n=20",
]
SETS = [word for text in TINY for word in ("--set", text)]
COMPARE = ["compare", "--methods", "decor,search_r1,direct", "--seeds", "0", "--budget", "3000", "--out", "cmp", *SETS]


def rolecast(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rolecast.cli.main", *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def done(process: subprocess.Popen[str], code: int = 0) -> str:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == code, out
    return out


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_comparison_goes_on_where_it_was_interrupted_and_does_nothing_twice(tmp_path: Path) -> None:
    first = rolecast(tmp_path, *COMPARE)
    while not (tmp_path / "cmp" / "decor-0" / "rl" / "checkpoints").exists():
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    assert "go on with" in done(first, 143)
    assert not (tmp_path / "cmp" / "search_r1-0").exists()

    out = done(rolecast(tmp_path, *COMPARE))
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(("decor ", "search_r1 ", "direct "))]
    assert rows == ["decor", "search_r1", "direct"]
    found = read(tmp_path / "cmp" / "comparison.json")
    by_method = {row["method"]: row for row in found["methods"]}
    assert list(by_method) == ["decor", "search_r1", "direct"]
    for name in ("decor", "search_r1"):
        assert by_method[name]["ended"] == ["budget"]
        assert by_method[name]["training"]["sampled"] >= 3000
        steps = [json.loads(line) for line in (tmp_path / "cmp" / f"{name}-0" / "rl" / "metrics.jsonl").read_text().splitlines()]
        assert [row["tokens/sampled"] >= 3000 for row in steps[1:]] == [False] * (len(steps) - 2) + [True]
    assert by_method["direct"]["training"]["sampled"] == 0
    assert found["sft_rows"] == {"decor": 480, "search_r1": 480, "direct": 480}
    assert found["origin"]["commands"][0].startswith("rolecast compare --methods decor,search_r1,direct")
    assert (tmp_path / "cmp" / "comparison.html").exists()

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cmp").rglob("result.json")}
    assert "3 of 3 runs are done" in done(rolecast(tmp_path, *COMPARE))
    assert before == {path: path.stat().st_mtime_ns for path in before}
    refused = done(rolecast(tmp_path, *COMPARE, "--set", "method.k=2"), 2)
    assert "holds a run with another config (differs in method.k from 5 to 2" in refused

    contexts = [
        "long-context",
        "cmp/search_r1-0",
        "--k",
        "1,4",
        "--passage-tokens",
        "40",
        "--questions",
        "6",
        "--set",
        "method.observation_tokens=2000",
    ]
    assert "searcher" in done(rolecast(tmp_path, *contexts, "--out", "ctx"))
    short, long = read(tmp_path / "ctx" / "contexts.json")["rows"]
    assert short["context"]["searcher"] <= long["context"]["searcher"]
    assert read(next((tmp_path / "cmp" / "search_r1-0" / "eval").glob("rl.k4*/result.json")))["switches"]["k"] == 4


def test_stability_counts_collapses_over_seeds(tmp_path: Path) -> None:
    given = [
        "stability",
        "--methods",
        "search_r1",
        "--seeds",
        "0,1",
        "--steps",
        "1,3",
        "--sft",
        "with",
        "--out",
        "st",
        "--jobs",
        "2",
        *SETS,
    ]
    out = done(rolecast(tmp_path, *given))
    assert "0/2" in out
    [row] = read(tmp_path / "st" / "stability.json")["rows"]
    assert (row["method"], row["sft"], [rate["of"] for rate in row["rates"]]) == ("search_r1", True, [2, 2])
    assert [point[0] for point in row["scores"]["0"]] == [0, 1, 2, 3]
    assert "2 of 2 runs are done" in done(rolecast(tmp_path, *given))
