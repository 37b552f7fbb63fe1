"""A disk that is full or closed: one error with the place and the next step, whoever was writing."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rolecast.config import RunConfig
from rolecast.disk import disk_fault, writing_to
from rolecast.errors import DiskError, InputError
from rolecast.stages.metrics import MetricsLog
from rolecast.stages.run import create
from rolecast.store.artifact import committed, write_text, writing


@contextmanager
def room(size: int) -> Iterator[None]:
    """No file can grow past `size` bytes in here: writes fail with EFBIG, as they do with ENOSPC on a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


HOW: dict[str, Callable[[Path], object]] = {
    "text": lambda file: file.write_text("x" * 50_000),
    "torch": lambda file: torch.save(torch.zeros(50_000), file),
    "safetensors": lambda file: save_file({"a": torch.zeros(50_000)}, file),
}


@pytest.mark.parametrize("how", HOW)
def test_an_artifact_without_room_names_itself_and_leaves_nothing(tmp_path: Path, how: str) -> None:
    path, said = tmp_path / "model", r"model.*cannot be written \(.*\); make room there"
    with pytest.raises(DiskError, match=said) as caught, room(10_000), writing(path, "model", {}) as partial:
        HOW[how](partial / "a")
    assert "\n" not in str(caught.value)
    assert not committed(path)
    assert list(tmp_path.iterdir()) == []


def test_small_files_and_metrics_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"seconds\.json cannot be written"), room(100):
        write_text(tmp_path / "seconds.json", "x" * 5000)
    log = MetricsLog(tmp_path / "sft", -1)
    with pytest.raises(DiskError, match=r"metrics\.jsonl cannot be written"), room(10):
        log.write(1, {"loss": 1.0})
    (tmp_path / "rl").write_text("a file")
    with pytest.raises(DiskError, match=r"rl.* something else is in its place"):
        MetricsLog(tmp_path / "rl", -1)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "x/a cannot be written (No space left on device); make room there, then give the same command again"),
        (errno.EROFS, "x/a cannot be written (Read-only file system); make it writable, or name another place"),
        (errno.EACCES, "make it writable"),
        (errno.EEXIST, "move that away"),
    ],
)
def test_each_fault_has_its_next_step(number: int, said: str) -> None:
    fault = disk_fault(OSError(number, os.strerror(number), "x/a"))
    assert said in str(fault)
    wrapped = RuntimeError("odd")
    wrapped.__cause__ = OSError(number, os.strerror(number), b"x/a")
    assert said in str(disk_fault(wrapped))


def test_what_is_not_the_disks_passes(tmp_path: Path) -> None:
    for error in (OSError(errno.ECONNREFUSED, "refused"), FileNotFoundError(errno.ENOENT, "none", "a"), ValueError("odd")):
        assert disk_fault(error, tmp_path) is None
        with pytest.raises(type(error)), writing_to(tmp_path):
            raise error
    with pytest.raises(InputError), writing_to(tmp_path):
        raise InputError("mine")


@pytest.mark.parametrize(
    "command", [["run", "create", "run", "--config", "c.yaml"], ["data", "world", "--out", "w"], ["pipeline", "compile", "--out", "p.yaml"]]
)
def test_commands_say_it_in_one_line(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "c.yaml").write_text(
        "data: {world: {entities: {train: 150, dev: 60, test: 90}, questions: {train: 60, dev: 8, test: 16}}}\n"
    )
    code = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
    code += f"import rolecast.cli.main as m; sys.argv[1:] = {command!r}; m.main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    [line] = done.stderr.splitlines()
    assert done.returncode in (1, 2)
    assert line.startswith("rolecast: ")
    assert "cannot be written (File too large)" in line


ENTRIES = {
    "the command": "import rolecast.cli.main as m; sys.argv[1:] = ['sft', 'run']; m.main()",
    "a pipeline's step": "from rolecast.stages import tasks; tasks.train('run', 'sft', 'sft')",
    "a job's rank": "import rolecast.learner.main as m; sys.argv[1:] = ['sft', 'run']; m.main()",
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_whoever_meets_it_first_says_it_in_one_line(tmp_path: Path, entry: str) -> None:
    create(tmp_path / "run", RunConfig())
    (tmp_path / "run" / ".lock").mkdir()
    done = subprocess.run([sys.executable, "-c", f"import sys; {ENTRIES[entry]}"], cwd=tmp_path, capture_output=True, text=True)
    said = "rolecast: run/.lock cannot be written (Is a directory); something else is in its place: move that away, then give the same"
    assert (done.returncode, done.stderr.startswith(said), done.stderr.count("\n")) == (1, True, 1), done.stderr
