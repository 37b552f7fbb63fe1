"""`rolecast plan` as it is typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rolecast.cli import main

CONFIG = "method: {name: decor}\ndata: {world: {entities: {train: 30, dev: 30, test: 30}, questions: {train: 4, dev: 2, test: 2}}}\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path / "c.yaml"


def planned(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["rolecast", "plan", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


def test_it_says_and_starts_nothing(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(monkeypatch, "c.yaml", "--set", "stages.rl.steps=3", "--tokens-per-second", "1000,2000") == 0
    said = capsys.readouterr().out
    assert "memory, stage rl" in said
    assert "at the rates given" in said
    assert list(config.parent.iterdir()) == [config]


def test_as_an_object(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(monkeypatch, "c.yaml", "--json", "--memory", "8", "--tokens-per-second", "1000,2000") == 0
    told = json.loads(capsys.readouterr().out)
    work = told["work"]["rl"]
    assert told["seconds"]["rl"] == work["sampled"] / 1000 + work["trained"] / 2000
    assert told["memory_bytes"] == 8 * 2**30


def test_what_cannot_fit_is_shown_and_refused(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(monkeypatch, "c.yaml", "--memory", "0.5") == 2
    said = capsys.readouterr()
    assert "memory, stage sft" in said.out
    [line] = said.err.strip().splitlines()
    assert "this machine has 0.5; its largest part is" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["c.yaml", "--gpus", "2"], "as --memory 80 (GiB)"),
        (["c.yaml", "--tokens-per-second", "1,1", "--like", "run"], "give one of them"),
        (["c.yaml", "--like", "run"], "is not a run"),
        (["c.yaml", "--set", "model.path=nowhere"], "nowhere/config.json cannot be read"),
        (["c.yaml", "--set", "nothing=1"], "nothing"),
        (["s3://bucket/c.yaml"], "is an address"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(monkeypatch, *arguments) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert said in line
