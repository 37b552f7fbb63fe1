"""What studies refuse before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.errors import InputError


@pytest.mark.parametrize("steps", ["0", "5,-1", ","])
def test_collapse_is_counted_after_steps(tmp_path: Path, steps: str) -> None:
    done = CliRunner().invoke(app, ["stability", "--methods", "decor", "--steps", steps, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(f"--steps {steps}: collapse is counted after RL steps")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [["compare", "--budget", "600"], ["stability", "--steps", "2"]])
def test_seeds_begin_with_0(tmp_path: Path, command: list[str]) -> None:
    done = CliRunner().invoke(app, [command[0], "--methods", "decor", "--seeds", "-1", "--out", str(tmp_path / "out"), *command[1:]])
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == "--seeds -1: a seed is a whole number from 0 on"
    assert not (tmp_path / "out").exists()
