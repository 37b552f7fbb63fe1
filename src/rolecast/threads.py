"""How many threads a process computes with, and how they wait for each other. To be settled before torch is imported.

OpenMP's threads spin at the end of every parallel region, which takes the cores from whoever has work: beside other processes that
costs more than it ever saves. So they sleep here after a moment. libgomp (torch's Linux wheels) counts turns of spinning, GOMP_SPINCOUNT:
with a thousand, some microseconds, a small model is as fast as ever on a machine of its own, where OMP_WAIT_POLICY=passive, which
is none, takes a third longer (docs/performance.md). LLVM's and Intel's runtimes spin for KMP_BLOCKTIME milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

COUNT = "OMP_NUM_THREADS"
CHOSEN = "ROLECAST_CHOSEN_THREADS"  # what COUNT was set to by us: a child chooses anew, a user's own number stays
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def prepare_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets what the user has not: threads that soon sleep, and the cores that are there, shared by the processes of a job on this machine."""
    if not any(name in environment for name in WAITING):
        environment["GOMP_SPINCOUNT"] = "1000"
        environment["KMP_BLOCKTIME"] = "0"
    if not given(environment):
        environment[COUNT] = environment[CHOSEN] = str(max(1, cores() // int(environment.get("LOCAL_WORLD_SIZE", "1"))))


def given(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Whether the number of threads is the user's own."""
    return environment.get(COUNT) not in (None, "", environment.get(CHOSEN))


def cores() -> int:
    """Those that this process may run on, and no more than its control group has time for; a part of one counts as one."""
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(quotas(), default=float(free))
    return max(1, min(free, int(quota)))


def described(environment: MutableMapping[str, str] = os.environ) -> str:
    """One line for people."""
    wait = next((f"{name}={environment[name]}" for name in WAITING if name in environment), "as OpenMP likes")
    return f"{environment.get(COUNT) or cores()} threads on {cores()} cores of {os.cpu_count()}, waiting: {wait}"


def quotas(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[float]:
    """Cores' worth of time that this process's control groups, from its own up to the root, have; those without a limit say nothing.

    A container may see its group's path on the host, which is not there: then its own root is what counts.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for number, controllers, path in lines:
        if number == "0":
            for folder in _up(root, path):
                yield from _quota(folder / "cpu.max")
        elif "cpu" in controllers.split(","):
            for mount in dict.fromkeys((controllers, "cpu")):
                for folder in _up(root / mount, path):
                    yield from _quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def _up(root: Path, path: str) -> Iterator[Path]:
    folder = root / path.lstrip("/")
    while folder != root and root in folder.parents:
        yield folder
        folder = folder.parent
    yield root


def _quota(*files: Path) -> Iterator[float]:
    """From `cpu.max` (quota and period in one line, "max" for none) or from the two files of version 1 (−1 for none)."""
    try:
        limit, period = " ".join(file.read_text() for file in files).split()
        if limit != "max" and float(limit) > 0:
            yield float(limit) / float(period)
    except (OSError, ValueError):
        return
