"""How much memory and disk is free here, and the one line for what needs more than that."""

from __future__ import annotations

import shutil
from pathlib import Path

from rolecast.errors import InputError

GB = 10**9
_GROUPS = (("memory.max", "memory.current", "inactive_file"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", ""))


def free_memory(meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that a process can still take on this machine, or in its control group where that has fewer; None where nothing says so."""
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        found: int | None = int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        found = None
    for most, now, cache in _GROUPS:
        try:
            left = int((groups / most).read_text()) - int((groups / now).read_text()) + _statistic(groups / "memory.stat", cache)
        except (OSError, ValueError):  # no such group, or "max"
            continue
        found = left if found is None else min(found, left)
    return found


def _statistic(file: Path, name: str) -> int:
    """File pages that a control group counts as its own, and gives back when they are wanted."""
    try:
        return next((int(line.split()[1]) for line in file.read_text().splitlines() if name and line.startswith(f"{name} ")), 0)
    except OSError:
        return 0


def free_disk(path: Path) -> int:
    """Bytes where `path` is, or would be made."""
    there = next(folder for folder in (path.resolve(), *path.resolve().parents) if folder.exists())
    return shutil.disk_usage(there).free


def require_memory(what: str, needed: int, step: str) -> None:
    """`InputError` if `what` needs more memory than is free. Where the machine does not say, nothing is refused."""
    free = free_memory()
    if free is not None and needed > free:
        raise InputError(f"{what} takes {_shown(needed)} of memory, and {_shown(free)} are free; {step}")


def require_disk(what: str, needed: int, path: Path, step: str) -> None:
    free = free_disk(path)
    if needed > free:
        raise InputError(f"{what} takes {_shown(needed)} of disk at {path.parent}, and {_shown(free)} are free; {step}")


def _shown(size: int) -> str:
    return f"{size / GB:,.1f} GB" if size >= GB // 10 else f"{size / 10**6:,.1f} MB"
