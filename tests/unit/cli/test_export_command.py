"""`rolecast export` as it is typed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rolecast.cli import main
from rolecast.cli.main import app
from rolecast.config import RunConfig
from rolecast.stages.run import create
from rolecast.store.artifact import verify, writing
from tests.tiny import TOKENIZER, tiny_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    run = create("runs/mine", RunConfig())
    with writing(run.model("sft"), "model", {}) as partial:
        tiny_model().save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    return tmp_path


def test_a_folder_of_the_run_and_the_stage_is_written_here(here: Path) -> None:
    done = CliRunner().invoke(app, ["export", "runs/mine"])
    assert (done.exit_code, done.stdout.strip()) == (0, "mine-sft")
    assert "config.json" in verify(here / "mine-sft", "export")["files"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs/mine", "--stage", "rl"], "has no rl model"),
        (["runs/mine", "--out", "runs"], "is no export; name another folder"),
        (["runs/mine", "--out", "gs://b/x"], "an artifact is a folder or s3://bucket/prefix/key"),
        (["runs/other"], "is not a run"),
        (["runs/mine", "--adapters"], "leave out --adapters"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], said: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rolecast", "export", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert sorted(path.name for path in here.iterdir()) == ["runs"]
