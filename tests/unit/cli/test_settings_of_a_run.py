"""`--set` without `--config`: of a run that is there, what may be changed at any time is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecast.cli.runs import opened
from rolecast.errors import InputError
from rolecast.stages.run import create, open_run
from tests.tiny_runs import taught


@pytest.fixture
def run(tmp_path: Path) -> str:
    create(tmp_path / "run", taught())
    return str(tmp_path / "run")


def test_what_may_change_any_time_is_what_the_run_has_from_then_on(run: str) -> None:
    assert opened(run, None, ["judge.budget=5", "threads=2"]).config.judge.budget == 5
    kept = open_run(run).config
    assert (kept.judge.budget, kept.threads) == (5, 2)
    assert opened(run, None, None).config == kept
    assert kept.model_copy(update={"threads": 1, "judge": taught().judge}) == taught()


def test_what_would_make_it_another_run_is_refused_and_changes_nothing(run: str) -> None:
    before = (Path(run) / "run.json").read_text()
    with pytest.raises(InputError, match=r"holds a run with another config \(differs in seed"):
        opened(run, None, ["seed=3"])
    with pytest.raises(InputError, match=r"judge\.budgets: unknown key"):
        opened(run, None, ["judge.budgets=5"])
    assert (Path(run) / "run.json").read_text() == before
    assert json.loads(before)["seed"] == 0


def test_a_run_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run"):
        opened(str(tmp_path / "other"), None, ["judge.budget=5"])
    assert not (tmp_path / "other").exists()
