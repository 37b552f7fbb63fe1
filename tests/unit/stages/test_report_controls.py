"""The summary's controls: one for each objective where a stage has several, and what all stages sampled."""

from __future__ import annotations

from rolecast.config import RunConfig
from rolecast.stages.report import _controls
from rolecast.types import Objective, Stage

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
