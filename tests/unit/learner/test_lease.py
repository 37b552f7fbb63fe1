from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolecast.learner import main, ranks
from rolecast.learner.ranks import Ranks
from rolecast.store.local import LocalStore


@pytest.mark.parametrize(("rank", "stored", "expected"), [(0, True, 1), (1, True, 0), (0, False, 0)])
def test_rank_zero_of_a_run_in_a_store_looks_at_its_jobs_lease(
    rank: int, stored: bool, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SimpleNamespace(store=LocalStore(tmp_path) if stored else None, config=SimpleNamespace(schedule=()))
    looked: list[Any] = []
    monkeypatch.setattr(main, "open_run", lambda location: run)
    monkeypatch.setattr(main, "find", lambda schedule, stage: None)
    monkeypatch.setattr(main, "end_unless_watched", looked.append)
    monkeypatch.setattr(ranks, "join", lambda: Ranks(rank=rank))
    monkeypatch.setattr(ranks, "leave", lambda: None)
    monkeypatch.setattr("rolecast.stages.inputs.inputs", lambda run: None)
    monkeypatch.setattr("rolecast.stages.train.train", lambda run, stage, ranks: None)
    main.train("sft", "s3://store/runs/a")
    assert looked == [run.store] * expected
