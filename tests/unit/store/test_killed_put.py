"""A record that was being written when its process was killed: never seen, and gone with the next write there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolecast.errors import ArtifactError
from rolecast.store import local
from rolecast.store.local import LocalStore

PUT = """
import os, signal, sys
from pathlib import Path
from rolecast.store import local
def within(descriptor):
    print("within", flush=True)
    %s
local.os.fsync = within
local.LocalStore(Path(sys.argv[1])).put("runs/x/note", b"of the child")
"""


def putting(root: Path, then: str) -> subprocess.Popen[str]:
    """A process that does `then` within its write."""
    child = subprocess.Popen([sys.executable, "-c", PUT % then, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "within\n"
    return child


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "runs" / "x").iterdir())


@pytest.mark.parametrize("absent", [True, False])
def test_what_a_killed_writer_left_goes_with_the_next_write_there(tmp_path: Path, absent: bool) -> None:
    child = putting(tmp_path, "signal.pause()")
    child.kill()
    child.wait(60)
    [left] = names(tmp_path)
    assert left.startswith(".note.")
    store = LocalStore(tmp_path)
    assert (store.keys(""), store.get("runs/x/note")) == ([], None)
    assert store.put("runs/x/other", b"x", absent=absent)
    assert names(tmp_path) == ["other"]


def test_what_a_living_writer_writes_stays(tmp_path: Path) -> None:
    child = putting(tmp_path, "sys.stdin.readline()")
    [being_written] = names(tmp_path)
    store = LocalStore(tmp_path)
    assert store.put("runs/x/note", b"of this process")
    assert names(tmp_path) == [being_written, "note"]
    child.communicate("go on\n", 60)
    assert child.returncode == 0
    assert names(tmp_path) == ["note"]
    assert store.get("runs/x/note") == b"of the child"


def test_what_is_no_record_being_put_stays(tmp_path: Path) -> None:
    others = [".note.tmp", ".note.0123456z.tmp", "note.01234567.tmp", ".note.01234567.tmp.txt"]
    (tmp_path / "runs" / "x" / ".folder.01234567.tmp").mkdir(parents=True)
    for name in others:
        (tmp_path / "runs" / "x" / name).touch()
    assert LocalStore(tmp_path).put("runs/x/note", b"x")
    assert names(tmp_path) == sorted([*others, ".folder.01234567.tmp", "note"])


def taken(monkeypatch: pytest.MonkeyPatch, folder: Path, times: int) -> None:
    """Another process clears in the moment between a file's making and its lock, so many times."""
    flock, seen = local.fcntl.flock, list[object]()

    def late(file: Any, how: int) -> None:
        seen.append(file)
        if len(seen) <= times:
            local._clear(folder)
        flock(file, how)

    def clears(file: Any, how: int) -> None:
        late(file, how) if how == local.fcntl.LOCK_EX else flock(file, how)

    monkeypatch.setattr(local.fcntl, "flock", clears)


def test_one_that_was_cleared_before_it_was_locked_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(monkeypatch, tmp_path / "runs" / "x", 2)
    store = LocalStore(tmp_path)
    assert store.put("runs/x/note", b"x")
    assert names(tmp_path) == ["note"]
    assert store.get("runs/x/note") == b"x"


def test_a_folder_where_nothing_stays_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken(monkeypatch, tmp_path / "runs" / "x", 99)
    with pytest.raises(ArtifactError, match=r"note cannot be written: .*see what else deletes there"):
        LocalStore(tmp_path).put("runs/x/note", b"x")


def test_a_file_system_without_locks_is_written_to_and_nothing_is_cleared_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError("no locks")

    monkeypatch.setattr(local.fcntl, "flock", refuses)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / ".note.01234567.tmp").touch()
    assert LocalStore(tmp_path).put("runs/x/note", b"x")
    assert names(tmp_path) == [".note.01234567.tmp", "note"]


def test_a_folder_that_may_not_be_listed_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(folder: Path) -> list[str]:
        raise PermissionError(folder)

    monkeypatch.setattr(local.os, "listdir", refuses)
    assert LocalStore(tmp_path).put("runs/x/note", b"x")
    assert LocalStore(tmp_path).get("runs/x/note") == b"x"
