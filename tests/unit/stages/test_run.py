"""A run's folder: what an interrupted process left is mended before a stage works, and a broken file names itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.stages.run import create, open_run, working
from rolecast.store.artifact import verify, writing


def test_a_stage_finds_the_artifact_whose_replacement_was_killed(tmp_path: Path) -> None:
    run = create(tmp_path / "run", RunConfig())
    best = run.stage("rl") / "best"
    with writing(best, "model", {}) as partial:
        (partial / "weights").write_text("w")
    best.rename(best.with_name(".best.stale"))
    with working(run, "rl"):
        verify(best, "model")


def test_a_run_whose_config_is_broken_names_the_file(tmp_path: Path) -> None:
    create(tmp_path / "run", RunConfig())
    (tmp_path / "run" / "run.json").write_text('{"name": ')
    with pytest.raises(InputError, match=r"run/run\.json: not JSON"):
        open_run(tmp_path / "run")
