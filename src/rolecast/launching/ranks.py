"""`python -m rolecast.launching.ranks N STAGE RUN`: the ranks of one stage of a run, as processes of this machine.

They find in their environment what torchrun would put there. torchrun itself kills its workers 30 s after a SIGTERM, which is less
than a step may take to be saved, and tells of every end with a traceback of its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

from rolecast.exits import TOLD
from rolecast.processes import PARENT, die_with_parent
from rolecast.signals import handled

LEFT_SECONDS = 15.0  # for the other ranks to end after the first one has


def main() -> None:
    die_with_parent()
    count, *arguments = sys.argv[1:]
    ranks: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGTERM)

    command = [sys.executable, "-m", "rolecast.learner.main", *arguments]
    with handled(pass_on):
        for environment in environments(int(count)):  # each in a group of its own, so that a signal to this one's reaches them once
            ranks.append(subprocess.Popen(command, env={**os.environ, **environment}, process_group=0))
        sys.exit(ended(ranks))


def environments(count: int) -> list[dict[str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    same = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    named = [{**same, "RANK": rank, "LOCAL_RANK": rank, PARENT: os.getpid()} for rank in range(count)]
    return [{name: str(value) for name, value in environment.items()} for environment in named]


def ended(ranks: list[subprocess.Popen[bytes]], left: float = LEFT_SECONDS) -> int:
    """Waits for all of them. After the first that failed the others, which may wait for it for ever, have `left` seconds."""
    first: int | None = None
    deadline = float("inf")
    while any(rank.poll() is None for rank in ranks):
        failed = [rank.returncode for rank in ranks if rank.returncode]
        if failed and first is None:
            first, deadline = failed[0], time.monotonic() + left
        if time.monotonic() > deadline:
            for rank in ranks:
                rank.kill()
        time.sleep(0.05)
    codes = [first, *(rank.returncode for rank in ranks)]
    code = next((code for code in codes if code and code not in TOLD), None) or next((code for code in codes if code), 0)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
