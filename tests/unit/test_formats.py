"""What was written by an older or a newer release is opened, or refused with the release that reads it: each kind of thing that lasts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import load_config, make_config
from rolecast.errors import InputError
from rolecast.formats import Format, FormatError, release
from rolecast.learner import checkpoint
from rolecast.stages.run import create, open_run
from rolecast.store.artifact import parse_manifest, receiving, verify, writing
from rolecast.store.local import LocalStore
from tests.tiny_runs import taught


def run_in(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = create(folder / "run", taught()).path
    data = json.loads((path / "run.json").read_text())
    change(data)
    (path / "run.json").write_text(json.dumps(data))
    return path


def artifact_in(folder: Path, change: Callable[[dict[str, Any]], None], name: str = "thing", provenance: Any = None) -> Path:
    with writing(folder / name, "checkpoint", provenance or {}) as partial:
        (partial / "progress.json").write_text('{"step": 3}')
    manifest = json.loads((folder / name / "manifest.json").read_text())
    change(manifest)
    (folder / name / "manifest.json").write_text(json.dumps(manifest))
    return folder / name


def gone(data: dict[str, Any]) -> None:
    del data["format"]


def newer(number: int, since: str | None = None) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update({"format": number, **({"since": since} if since else {})})


def test_a_run_that_is_not_numbered_is_told_who_reads_it(tmp_path: Path) -> None:
    path = run_in(tmp_path, gone)
    with pytest.raises(FormatError, match=r"run\.json was .*: it is a run of format 1, which rolecast before 0\.1 reads$"):
        open_run(path)


def test_a_newer_run_names_the_release_that_reads_it(tmp_path: Path) -> None:
    path = run_in(tmp_path, newer(3, "0.4"))
    before = (path / "run.json").read_bytes()
    with pytest.raises(FormatError, match=r"a run of format 3, which rolecast 0\.4 or a later one reads, and not this one \(.*, up to 2\)"):
        open_run(path)
    with pytest.raises(FormatError):
        create(path, taught())
    assert (path / "run.json").read_bytes() == before


@pytest.mark.parametrize("number", ["2", True, None, 2.5, 0, -1, [2]])
def test_what_is_no_format_is_refused(tmp_path: Path, number: Any) -> None:
    with pytest.raises(FormatError, match="which the release that wrote it reads"):
        open_run(run_in(tmp_path, lambda data: data.update({"format": number})))


def test_a_run_says_its_format_and_nothing_else_changed(tmp_path: Path) -> None:
    """Releases before this one read it: they know no other key."""
    path = create(tmp_path / "run", taught()).path
    assert set(json.loads((path / "run.json").read_text())) == {"format", "shared", *taught().model_dump(mode="json")}
    assert open_run(path).config == taught()


def test_a_config_may_say_its_format(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    for text in ("format: 2\nseed: 5\n", "seed: 5\n"):
        file.write_text(text)
        assert load_config(file) == make_config({"seed": 5}, "c")
    file.write_text("format: 3\nsince: '0.9'\nnew_key: 1\n")
    with pytest.raises(FormatError, match=r"c\.yaml was .* format 3, which rolecast 0\.9"):
        load_config(file)


def test_a_config_and_its_fingerprint_have_no_format_in_them() -> None:
    assert make_config({"format": 2, "seed": 5}, "c").fingerprint == make_config({"seed": 5}, "c").fingerprint
    assert "format" not in make_config({}, "c").model_dump()


def test_an_artifact_without_a_number_opens_and_keeps_its_identity(tmp_path: Path) -> None:
    path = artifact_in(tmp_path, gone)
    before = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    verify(path, "checkpoint")
    LocalStore(tmp_path / "store").publish(path, "a")
    LocalStore(tmp_path / "store").fetch("a", tmp_path / "copy")
    assert hashlib.sha256((tmp_path / "copy" / "manifest.json").read_bytes()).hexdigest() == before


def test_a_newer_artifact_is_refused_wherever_it_is_read(tmp_path: Path) -> None:
    path = artifact_in(tmp_path, newer(2, "0.3"))
    told = r"manifest\.json was .*: it is an artifact of format 2, which rolecast 0\.3 or a later one reads"
    with pytest.raises(FormatError, match=told):
        verify(path, "checkpoint")
    with pytest.raises(FormatError, match=told):
        LocalStore(tmp_path / "store").publish(path, "a")
    with pytest.raises(FormatError, match=told), receiving(tmp_path / "copy", (path / "manifest.json").read_bytes(), "s3://b/a"):
        pass
    assert not (tmp_path / "copy").exists()


def test_an_artifact_that_is_written_says_its_format(tmp_path: Path) -> None:
    path = artifact_in(tmp_path, lambda manifest: None)
    assert parse_manifest((path / "manifest.json").read_bytes(), "a")["format"] == 1


def test_a_checkpoint_without_a_number_is_read(tmp_path: Path) -> None:
    path = artifact_in(tmp_path, gone, "step-000003", {"threads": 2})
    assert checkpoint.newest(tmp_path) == checkpoint.Checkpoint(path, 3, {"step": 3}, 2)


@pytest.mark.parametrize("where", ["manifest", "provenance"])
def test_a_newer_checkpoint_is_not_passed_over_for_an_older_one(tmp_path: Path, where: str) -> None:
    """Training on from the one before would throw away what the newer release did."""
    artifact_in(tmp_path, gone, "step-000003")
    change = newer(2) if where == "manifest" else lambda manifest: manifest["provenance"].update({"format": 2, "since": "0.3"})
    artifact_in(tmp_path, change, "step-000006")
    with pytest.raises(FormatError, match="format 2, which"):
        checkpoint.newest(tmp_path)
    with pytest.raises(FormatError):
        checkpoint.all_of(tmp_path)


def test_an_error_of_a_format_is_bad_input() -> None:
    assert issubclass(FormatError, InputError)
    assert FormatError("x").exit_code == 2
    with pytest.raises(FormatError, match=release().replace(".", r"\.")):
        Format("a thing", current=1).check({"format": 2}, "here")


def test_a_format_that_is_still_read_after_a_newer_one_came_opens() -> None:
    thing = Format("a thing", current=3, older={1: "0.1"})
    thing.check({"format": 2}, "here")
    thing.check({"format": 3}, "here")
    with pytest.raises(FormatError, match=r"which rolecast 0\.1 reads"):
        thing.check({}, "here")
