"""Artifacts: all or nothing, manifest last, and nothing is read that does not match it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolecast.errors import ArtifactError
from rolecast.store import artifact
from rolecast.store.artifact import MANIFEST, committed, recover, verify, write_text, writing

FILES = {"one.txt": b"first", "folder/two.bin": bytes(range(256))}


def make(path: Path, files: dict[str, bytes] = FILES, kind: str = "thing") -> Path:
    with writing(path, kind, {"seed": 3}) as partial:
        for name, content in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file() and f.name != MANIFEST}


def beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def test_an_artifact_has_its_files_and_a_manifest_of_them(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    manifest = verify(path, "thing")
    assert contents(path) == FILES
    assert (manifest["kind"], manifest["provenance"]) == ("thing", {"seed": 3})
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == {"one.txt": 5, "folder/two.bin": 256}
    assert manifest["files"]["one.txt"]["sha256"] == "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e"
    assert beside(path) == ["a"]


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    assert committed(make(tmp_path / "deep" / "er" / "a"))


def test_nothing_is_there_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with writing(path, "thing", {}) as partial:
        (partial / "one.txt").write_text("first")
        assert not path.exists()
        assert not committed(partial)
    assert committed(path)


def test_the_manifest_is_written_after_every_file_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    entry, write = artifact.entry_of, artifact.write_text

    def noted_entry(file: Path) -> dict[str, Any]:
        steps.append(file.name)
        return entry(file)

    def noted_write(path: Path, text: str) -> None:
        steps.append(path.name)
        write(path, text)

    monkeypatch.setattr(artifact, "entry_of", noted_entry)
    monkeypatch.setattr(artifact, "write_text", noted_write)
    path = make(tmp_path / "a")
    assert steps == ["two.bin", "one.txt", MANIFEST]
    assert committed(path)


def fail_inside(path: Path, error: type[BaseException] = RuntimeError) -> None:
    def half() -> None:
        with writing(path, "thing", {}) as partial:
            (partial / "one.txt").write_text("half")
            raise error

    with pytest.raises(error):
        half()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_crash_inside_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    fail_inside(tmp_path / "a", error)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_inside_leaves_the_artifact_that_was_there(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    fail_inside(path)
    assert contents(path) == FILES
    verify(path, "thing")
    assert beside(path) == ["a"]


def test_a_crash_while_the_manifest_is_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(artifact, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        make(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_crash_left_behind_is_not_taken_in(tmp_path: Path) -> None:
    partial = tmp_path / ".a.partial"
    partial.mkdir()
    (partial / "junk.txt").write_text("left over")
    assert contents(make(tmp_path / "a")) == FILES


def test_a_replacement_is_whole(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    make(path, {"three.txt": b"third"})
    assert contents(path) == {"three.txt": b"third"}
    assert list(verify(path, "thing")["files"]) == ["three.txt"]
    assert beside(path) == ["a"]


def test_what_is_replaced_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    with writing(path, "thing", {}) as partial:
        (partial / "three.txt").write_text("third")
        assert contents(path) == FILES
        verify(path, "thing")
    assert list(contents(path)) == ["three.txt"]


def test_a_replacement_that_fails_at_its_last_step_leaves_the_old_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a")
    rename = Path.rename

    def stubborn(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError("device busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stubborn)
    with pytest.raises(OSError, match="busy"):
        make(path, {"three.txt": b"third"})
    verify(path, "thing")
    assert contents(path) == FILES
    assert beside(path) == ["a"]


def killed_between_the_renames(path: Path) -> None:
    make(path)
    path.rename(path.with_name(f".{path.name}.stale"))


def test_what_a_killed_replacement_left_aside_is_put_back(tmp_path: Path) -> None:
    path = tmp_path / "run" / "deep" / "a"
    killed_between_the_renames(path)
    assert not committed(path)
    recover(tmp_path)
    assert contents(path) == FILES
    verify(path, "thing")
    assert beside(path) == ["a"]


def test_recovering_keeps_what_is_in_place(tmp_path: Path) -> None:
    killed_between_the_renames(tmp_path / "a")
    make(tmp_path / "b")
    shutil.copytree(tmp_path / ".a.stale", tmp_path / ".b.stale")
    (tmp_path / ".b.stale" / "one.txt").write_text("old")
    recover(tmp_path)
    assert beside(tmp_path / "a") == ["a", "b"]
    verify(tmp_path / "b", "thing")


def test_a_writer_goes_on_from_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "a"
    killed_between_the_renames(path)
    make(path, {"three.txt": b"third"})
    assert contents(path) == {"three.txt": b"third"}
    assert beside(path) == ["a"]


# Reading


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def swap_for_another_of_the_same_size(file: Path) -> None:
    file.write_bytes(b"x" * file.stat().st_size)


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def turn_into_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("harm", [flip, swap_for_another_of_the_same_size, lengthen, Path.unlink, turn_into_a_folder])
def test_a_file_that_does_not_match_is_refused_by_name(tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    path = make(tmp_path / "a")
    harm(path / name)
    with pytest.raises(ArtifactError, match=name):
        verify(path, "thing")


def test_an_artifact_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is a thing, not a index"):
        verify(make(tmp_path / "a"), "index")


@pytest.mark.parametrize("left", [None, "one.txt", f".{MANIFEST}.tmp"])
def test_a_folder_without_manifest_is_no_artifact(tmp_path: Path, left: str | None) -> None:
    path = tmp_path / "a"
    if left:
        path.mkdir()
        (path / left).write_text("complete to look at")
    assert not committed(path)
    with pytest.raises(ArtifactError, match="no committed thing"):
        verify(path, "thing")


@pytest.mark.parametrize(
    "text", ["", '{"kind": "thing"', '{"kind": "thing"}', "[]", '{"kind": "thing", "files": []}', '{"files": {}}', "\x00"]
)
def test_a_broken_manifest_is_an_artifact_error(tmp_path: Path, text: str) -> None:
    path = make(tmp_path / "a")
    (path / MANIFEST).write_text(text)
    with pytest.raises(ArtifactError):
        verify(path, "thing")


# Single files


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "f", "öld")
    write_text(tmp_path / "f", "néw\n")
    assert (tmp_path / "f").read_text() == "néw\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_a_file_keeps_its_text_if_writing_the_new_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "f", "old")

    def broken(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="no space"):
        write_text(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"


def test_provenance_is_json(tmp_path: Path) -> None:
    manifest = json.loads((make(tmp_path / "a") / MANIFEST).read_text())
    assert set(manifest) == {"format", "kind", "files", "provenance"}
