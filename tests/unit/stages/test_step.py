"""How a pipeline's step ends, and what one that is tried again finds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rolecast.errors import InputError, RolecastError
from rolecast.launching.failure import JobFailed
from rolecast.stages import tasks
from rolecast.stages.step import End, Ends, step

CALLS: list[str] = []


class Named(RolecastError):
    exit_code = 3


ERRORS = {2: InputError("a bad row"), 3: Named("it diverged"), 1: JobFailed("job x failed", "# Job x failed\n\nlast lines")}


@step
def train(run: str, stage: str, code: int = 0, execution: str = "") -> str:
    CALLS.append(stage)
    if code:
        raise ERRORS[code]
    return run


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()


def ends_with(run: Path, code: int, execution: str = "run-1", stage: str = "sft") -> int:
    with pytest.raises(SystemExit) as caught:
        train(str(run), stage, code, execution=execution)
    return int(caught.value.code or 0)


@pytest.mark.parametrize("code", [2, 3])
def test_a_named_end_is_said_again_without_doing_anything(code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_with(tmp_path, code) == code
    first = capsys.readouterr().err
    assert ends_with(tmp_path, 0) == code  # what would go well now is not done
    assert capsys.readouterr().err == first
    assert CALLS == ["sft"]


def test_other_ends_are_tried_again(tmp_path: Path) -> None:
    assert ends_with(tmp_path, 1) == 1
    assert train(str(tmp_path), "sft", execution="run-1") == str(tmp_path)
    assert CALLS == ["sft", "sft"]


def test_another_execution_and_another_stage_begin_anew(tmp_path: Path) -> None:
    ends_with(tmp_path, 2)
    train(str(tmp_path), "sft", execution="run-2")
    train(str(tmp_path), "rl", execution="run-1")
    assert CALLS == ["sft", "sft", "rl"]


def test_nothing_is_recorded_without_an_execution_and_where_nothing_is(tmp_path: Path) -> None:
    ends_with(tmp_path, 2, execution="")
    ends_with(tmp_path / "none", 2)
    assert not list(tmp_path.rglob("*"))


def test_a_record_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    ends_with(tmp_path, 2)
    (file,) = tmp_path.rglob("train-sft.json")
    file.write_text("{")
    assert train(str(tmp_path), "sft", execution="run-1")


def test_a_place_that_cannot_be_written_does_not_hide_what_the_step_ended_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Ends, end: End) -> None:
        raise RolecastError("the store does not answer")

    monkeypatch.setattr(Ends, "note", broken)
    assert ends_with(tmp_path, 2) == 2
    noted, said = capsys.readouterr().err.splitlines()
    assert "could not be recorded: the store does not answer" in noted
    assert said == "rolecast: a bad row"


def test_the_last_step_tells_what_is_recorded_and_deletes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends_with(tmp_path, 1)
    ends_with(tmp_path, 2, stage="rl")
    notes = tmp_path / "notes.md"
    tasks.conclude(str(tmp_path), "FAILED", "kfp's words", str(notes), "run-1")
    text = notes.read_text()
    assert text.startswith(f"# {tmp_path}: failed\n")
    assert "## train-rl: exit code 2\n\na bad row" in text
    assert "## train-sft: exit code 1\n\njob x failed\n\n# Job x failed\n\nlast lines" in text
    assert Ends(str(tmp_path), "run-1").all() == []
    assert train(str(tmp_path), "rl", execution="run-1")  # a person tries again


def test_the_last_step_tells_kfps_words_where_no_step_left_any(tmp_path: Path) -> None:
    tasks.conclude(str(tmp_path), "FAILED", "pod deleted", str(tmp_path / "notes.md"), "run-1")
    assert "pod deleted" in (tmp_path / "notes.md").read_text()
    tasks.conclude(str(tmp_path), "SUCCEEDED", "", str(tmp_path / "notes.md"), "run-1")
    assert (tmp_path / "notes.md").read_text() == f"# {tmp_path}: done\n"


def test_an_execution_is_one_name_below_the_run(tmp_path: Path) -> None:
    Ends(str(tmp_path), "../../x").note(End(step="a", code=2, message="m"))
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file == tmp_path / "ends" / "------x" / "a.json"
    assert json.loads(file.read_text())["code"] == 2


def test_a_mounted_authority_of_the_store_is_trusted_unless_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolecast.stages.step.S3_CA", tmp_path / "ca.crt")
    monkeypatch.setenv("AWS_CA_BUNDLE", "")
    monkeypatch.delenv("AWS_CA_BUNDLE")
    train(str(tmp_path), "sft")
    assert "AWS_CA_BUNDLE" not in os.environ
    (tmp_path / "ca.crt").write_text("a certificate")
    train(str(tmp_path), "sft")
    assert os.environ["AWS_CA_BUNDLE"] == str(tmp_path / "ca.crt")
    monkeypatch.setenv("AWS_CA_BUNDLE", "/mine.crt")
    train(str(tmp_path), "sft")
    assert os.environ["AWS_CA_BUNDLE"] == "/mine.crt"


def test_the_last_step_of_a_comparison_tells_the_ends_of_its_runs(tmp_path: Path) -> None:
    for name in ("decor-0", "decor-1"):
        (tmp_path / name).mkdir()
    ends_with(tmp_path / "decor-1", 2)
    tasks.conclude(str(tmp_path), "FAILED", "", str(tmp_path / "notes.md"), "run-1", '["decor-0", "decor-1"]')
    assert f"## train-sft of {tmp_path}/decor-1: exit code 2\n\na bad row" in (tmp_path / "notes.md").read_text()
    assert Ends(f"{tmp_path}/decor-1", "run-1").all() == []
