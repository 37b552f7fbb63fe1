"""Ctrl-C and SIGTERM to real commands: saved at the end of the step, one line with the command that goes on, 130 or 143."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.test_resume import CONFIG, rows

pytestmark = pytest.mark.slow
SHORT = (
    CONFIG.replace("steps: 320", "steps: 60").replace("drills: 32", "drills: 0").replace("lr: 1.0e-2, optimizer", "lr: 1.0e-3, optimizer")
)
ROLECAST = [sys.executable, "-m", "rolecast.cli.main"]


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command in a session of its own, as a terminal starts it."""
    (folder / "config.yaml").write_text(SHORT)
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [*ROLECAST, *arguments], cwd=folder, env={**os.environ, "TMPDIR": str(folder / "tmp")}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def left(folder: Path) -> list[str]:
    """Of what the commands make for a while: what is still there."""
    found = [Path(place, name) for place, folders, _ in os.walk(folder) for name in folders if name.startswith("rolecast-tmp-")]
    return sorted(str(path.relative_to(folder)) for path in found)  # rglob fails where one goes meanwhile


def wait_for(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], list[str]]:
    """The exit code, the lines that begin with the command's name, and the command that they say goes on."""
    out, errors = process.communicate(timeout=240)
    said = [line for line in (out + errors).splitlines() if "rolecast: " in line]
    assert "Traceback" not in out + errors, out + errors
    found = re.search(r"go on with `(.*)`$", said[-1])
    return process.returncode, said, shlex.split(found[1]) if found else []


def under(pid: int) -> list[int]:
    """All that a process started, and what they did, in the order of their depth."""
    children = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return [*children, *(below for child in children for below in under(child))]


TO: dict[str, Callable[[subprocess.Popen[str], int], None]] = {
    "the command": lambda process, number: process.send_signal(number),
    "its group": lambda process, number: os.killpg(process.pid, number),
    "its last descendant": lambda process, number: os.kill(([process.pid, *under(process.pid)])[-1], number),
}
COMMANDS = {
    "sft": ("sft", "run", "--config", "config.yaml"),
    "ranks": ("train", "run", "sft", "--procs", "2", "--config", "config.yaml"),
    "pipeline": ("pipeline", "run", "--local", "--config", "config.yaml", "--run", "run"),
    "pipeline of ranks": ("pipeline", "run", "--local", "--procs", "2", "--config", "config.yaml", "--run", "run"),
}


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_training_command_saves_says_so_once_and_is_gone_on_with(tmp_path: Path, command: str, number: signal.Signals, to: str) -> None:
    process = begin(tmp_path, *COMMANDS[command])
    wait_for(process, lambda: rows(tmp_path / "run", "sft") >= 2)
    TO[to](process, number)
    code, said, again = ended(process)
    told = number if to != "its last descendant" or command == "sft" else code - 128  # who is in between passes SIGTERM on
    assert code == 128 + told
    assert left(tmp_path) == []
    [line] = said
    found = re.match(r"rolecast: told to end: sft is saved at step (\d+) of 60; go on with `", line)
    assert found, line
    assert (tmp_path / "run" / "sft" / "checkpoints" / f"step-{int(found[1]):06d}" / "manifest.json").exists()
    assert again == [*ROLECAST, *COMMANDS[command]]
    if command == "sft" and to == "the command":
        assert subprocess.run(again, cwd=tmp_path, timeout=240).returncode == 0
        assert rows(tmp_path / "run", "sft") == 6  # of every tenth step, those before included


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_between_stages_a_command_ends_in_one_line(tmp_path: Path, number: signal.Signals) -> None:
    process = begin(tmp_path, *COMMANDS["pipeline"])
    wait_for(process, lambda: (tmp_path / "run").exists())
    process.send_signal(number)
    code, said, again = ended(process)
    assert left(tmp_path) == []
    assert (code, len(said), again) == (128 + number, 1, [*ROLECAST, *COMMANDS["pipeline"]])


def test_a_second_ctrl_c_ends_at_once_with_all_that_was_started(tmp_path: Path) -> None:
    process = begin(tmp_path, *COMMANDS["pipeline of ranks"])
    wait_for(process, lambda: rows(tmp_path / "run", "sft") >= 2)
    started = under(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.1)  # a signal that waits already is not told twice
    os.killpg(process.pid, signal.SIGINT)
    code, said, _ = ended(process)
    assert (code, said) == (130, ["rolecast: ended at once; what was not saved yet is lost"])
    assert left(tmp_path) == []
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_killed_command_left_the_next_one_clears(tmp_path: Path) -> None:
    process = begin(tmp_path, *COMMANDS["pipeline of ranks"])
    wait_for(process, lambda: rows(tmp_path / "run", "sft") >= 2)
    process.kill()
    process.communicate(timeout=60)
    of_killed = left(tmp_path)
    assert of_killed
    again = begin(tmp_path, *COMMANDS["pipeline of ranks"])
    wait_for(again, lambda: bool(set(left(tmp_path)) - set(of_killed)))
    assert not set(left(tmp_path)) & set(of_killed)
    os.killpg(again.pid, signal.SIGINT)
    ended(again)
    assert left(tmp_path) == []


def test_the_demos_command_that_goes_on_does_not_delete_what_was_done(tmp_path: Path) -> None:
    process = begin(tmp_path, "demo", "--fresh", "--set", "stages.sft.drills=0")
    wait_for(process, lambda: rows(tmp_path / "runs" / "demo", "sft") >= 1)
    os.killpg(process.pid, signal.SIGINT)
    code, said, again = ended(process)
    assert (code, len(said), again) == (130, 1, [*ROLECAST, "demo", "--set", "stages.sft.drills=0"])
