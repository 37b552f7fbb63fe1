"""The summary's controls: one for each objective where a stage has several, and what all stages sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.retriever.index import build_index
from rolecast.stages.environment import environment_of
from rolecast.stages.report import _controls, report
from rolecast.stages.run import create
from rolecast.stages.segments import begin_segment
from rolecast.types import Objective, Passage, Stage

SFT, RL = RunConfig().schedule
TWO = Stage("two", "rl", "sft", (Objective("search", "scout", 1e-3), Objective("answer", "teller", 1e-3)))
ROWS = [{"step": 1, "clip_fraction": 0.2, "planner/clip_fraction": 0.9, "tokens/sampled": 10.0}, {"step": 2, "tokens/sampled": 30.0}]
SEVERAL = [
    {"step": 1, "search/clip_fraction": 0.1, "answer/clip_fraction": 0.5, "tokens/sampled": 5.0},
    {"step": 2, "search/clip_fraction": 0.3, "tokens/sampled": 7.0},
]


def test_each_objectives_clip_range_is_told_apart() -> None:
    assert _controls((SFT, TWO), {"sft": [], "two": SEVERAL}) == {
        "clip_fraction_search": 0.2, "clip_fraction_answer": 0.5, "sampled_tokens": 7.0,
    }  # fmt: skip


def test_tokens_are_those_of_all_stages() -> None:
    assert _controls((SFT, RL, TWO), {"sft": [{"step": 0, "nll": 1.0}], "rl": ROWS, "two": SEVERAL}) == {
        "clip_fraction": 0.2, "clip_fraction_search": 0.2, "clip_fraction_answer": 0.5, "sampled_tokens": 37.0,
    }  # fmt: skip


def test_what_is_not_known_is_none() -> None:
    assert _controls((SFT, RL), {}) == {"clip_fraction": None, "sampled_tokens": None}
    assert _controls((SFT,), {}) == {"sampled_tokens": None}


def test_a_summary_says_what_was_searched_who_judged_and_how_it_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECAST_JUDGE_URL", "http://judge:8080")
    run = create(tmp_path / "run", make_config({"judge": {"model": "model-a"}}, "here"))
    build_index([Passage("p", "", "text")], run.index, "bm25")
    begin_segment(run, "rl", 0, environment_of(run))
    summary = json.loads(report(run).read_text())
    about = summary["environment"]
    assert about["index"].startswith("bm25 ")
    assert about["judge"].startswith("model-a answer:")
    assert (about["encoder"], about["shared"], about["fingerprint"]) == (None, {}, run.fingerprint)
    [segment] = summary["segments"]["rl"]
    assert segment["environment"]["overrides"] == {"ROLECAST_JUDGE_URL": "http://judge:8080"}
    assert list(summary["segments"]) == ["rl"]
