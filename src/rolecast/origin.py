"""What made something: the code's commit, the command, and the machine. Summaries carry it, so that a figure can be made again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rolecast.threads import COUNT, cores

SOURCES = Path(__file__).parents[2]
COMMIT = "ROLECAST_COMMIT"  # of the sources, where they are a copy without a repository
COMMAND = "ROLECAST_COMMAND"  # the command that a person gave, for the processes that it starts


def begin(arguments: Sequence[str]) -> None:
    """Remembers the command, for this process and those that it starts; one that was started by a command keeps that one's."""
    os.environ.setdefault(COMMAND, shlex.join(["rolecast", *arguments]))


def origin() -> dict[str, str]:
    """Of what this process makes now."""
    return {"commit": commit(), "command": os.environ.get(COMMAND) or shlex.join(["python", *sys.argv])[:300], "machine": machine()}


def commit(root: Path = SOURCES) -> str:
    """Of the sources that run, marked where they differ from it; "unknown" for an installed package that no variable speaks for."""
    if given := os.environ.get(COMMIT):
        return given
    if not (root / ".git").exists():
        return "unknown"
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("-changed" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def machine() -> str:
    """Cores, threads, processor, and the GPU if this process computes on one."""
    threads = os.environ.get(COUNT) or str(cores())
    said = [f"{cores()} cores of {_processor()}, {threads} threads"]
    torch = sys.modules.get("torch")  # a process that has not loaded it computes nothing with it
    if torch is not None and torch.cuda.is_available():
        said.append(f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}")
    return ", ".join(said)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def _processor(file: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "an unknown processor")
