"""Configs so small that a whole run takes seconds; their teams know nothing."""

from __future__ import annotations

from typing import Any

from rolecast.config import RunConfig, make_config

SHAPE: dict[str, Any] = {
    "model": {"max_context": 256, "scratch": {"hidden": 16, "layers": 1, "heads": 1, "head_dim": 16, "feed_forward": 16}},
    "data": {"world": {"entities": {"train": 60, "dev": 30, "test": 40}, "questions": {"train": 12, "dev": 4, "test": 12}}},
    "retriever": {"kind": "bm25"},
    "eval": {"n": 12, "bootstrap": 100, "traces": 1},
    "threads": 1,
}
SFT = {"steps": 2, "batch": 4, "drills": 0}


def taught(seed: int = 0, rate: float = 1e-3, **more: Any) -> RunConfig:
    """One stage of SFT."""
    stages = {"sft": {**SFT, "lr": rate}}
    given = {"name": "tiny", "seed": seed, "method": {"name": "naive_rag", "max_tokens": 8}, "stages": stages, **SHAPE, **more}
    return make_config(given, "tiny")
