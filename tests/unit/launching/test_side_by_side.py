"""Commands side by side: how many at once, what is said of each, one that fails, and a signal."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rolecast.errors import Interrupted, RolecastError
from rolecast.launching import side_by_side
from rolecast.launching.side_by_side import Job, SideBySide
from rolecast.threads import CHOSEN, COUNT


@pytest.fixture(autouse=True)
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for Python: runs its third argument as a shell does."""
    script = tmp_path / "shell"
    script.write_text('#!/bin/bash\n[ "$1 $2" = "-m rolecast.cli.main" ] || exit 9\neval "$3"\n')
    script.chmod(0o755)
    monkeypatch.setattr(side_by_side.sys, "executable", str(script))
    monkeypatch.setattr(side_by_side, "NAP", 0.01)


def jobs(folder: Path, *commands: str) -> list[Job]:
    return [Job(f"job{n}", [command], folder / "logs" / f"{n}.log") for n, command in enumerate(commands)]


def test_each_has_its_log_and_all_are_done(tmp_path: Path) -> None:
    out = io.StringIO()
    made = jobs(tmp_path, "echo one; echo two >&2", "echo three")
    SideBySide(1, out).run(made)
    assert [job.log.read_text() for job in made] == ["one\ntwo\n", "three\n"]
    assert [line.split(" ", 1)[1].partition(" after")[0] for line in out.getvalue().splitlines()] == [
        f"job0 begins; its log is {made[0].log}", "job0 is done", f"job1 begins; its log is {made[1].log}", "job1 is done",
    ]  # fmt: skip


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_run_at_once_than_asked_for(tmp_path: Path, most: int) -> None:
    """Each job notes how many are running while it runs."""
    count = f"mkdir -p {tmp_path}/at; touch {tmp_path}/at/$$; ls {tmp_path}/at | wc -l; sleep 0.3; rm {tmp_path}/at/$$"
    made = jobs(tmp_path, *[count] * 5)
    SideBySide(most, io.StringIO()).run(made)
    assert max(int(job.log.read_text()) for job in made) == most


def test_one_that_fails_stops_no_other_and_its_last_word_is_said(tmp_path: Path) -> None:
    made = jobs(tmp_path, "echo 'rolecast: the disk is full'; echo more; exit 1", "echo fine", "exit 3")
    with pytest.raises(RolecastError, match=r"job0 failed \(and 1 more failed\): the disk is full; see .*/0.log"):
        SideBySide(1, io.StringIO()).run(made)
    assert made[1].log.read_text() == "fine\n"
    with pytest.raises(RolecastError, match="job0 failed: exit code 3; see"):
        SideBySide(1, io.StringIO()).run(jobs(tmp_path / "again", "exit 3"))


def test_a_signal_ends_all_that_run_and_begins_none(tmp_path: Path) -> None:
    """Each says when it was told, and saves for a moment."""
    told = "trap 'echo told; exit 143' TERM; echo ready; while true; do sleep 0.02; done"
    made = jobs(tmp_path, told, told, "echo never")

    def tell() -> None:
        while not all(job.log.exists() and "ready" in job.log.read_text() for job in made[:2]):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=tell).start()
    with pytest.raises(Interrupted, match="every run has saved what it had"):
        SideBySide(2, io.StringIO()).run(made)
    assert [job.log.read_text() for job in made[:2]] == ["ready\ntold\n"] * 2
    assert not made[2].log.exists()


@pytest.mark.parametrize(("most", "own", "threads"), [(2, None, "4"), (3, None, "2"), (20, None, "1"), (2, "7", "7")])
def test_the_cores_are_shared_out_unless_the_user_has_said_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, own: str | None, threads: str
) -> None:
    monkeypatch.setattr(side_by_side, "cores", lambda: 8)
    monkeypatch.setenv(COUNT, own or "8")
    monkeypatch.setenv(CHOSEN, "8")
    made = jobs(tmp_path, f"echo ${COUNT}")
    SideBySide(most, io.StringIO()).run(made)
    assert made[0].log.read_text() == f"{threads}\n"
