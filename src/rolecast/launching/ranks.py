"""`python -m rolecast.launching.ranks STAGE RUN --nodes N --procs P`: this node's ranks of one stage of a run, as child processes.

It is the first process of a learner's container, and what trains over several processes of one machine. The ranks find in their
environment what torchrun would put there; the operators of PyTorchJob and TrainJob say which node this is and where the first one is.
torchrun itself has one patience for ranks that save and for ranks that wait for one that died, makes 1 of every exit code, ends with a
traceback of its own, and as a container's first process takes no SIGTERM before its workers run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from rolecast.errors import InputError
from rolecast.exits import KILLED, PEER_LOST, TOLD, cause, of_process
from rolecast.processes import END, child_of_this, die_with_parent, say_error, say_termination
from rolecast.scratch import scratch
from rolecast.signals import handled

LEARNER = ["-m", "rolecast.learner.main"]
LEFT_SECONDS = 15.0  # for the other ranks to end after one has failed: they may wait for it for ever
TELL_SECONDS = 5.0  # after a rank ended that somebody else told to: mostly the others end with it
SAVE_SECONDS = 110  # for all ranks to save and end after SIGTERM: a little less than a pod's grace
LOOK_SECONDS = 0.05


class Told:
    """Takes note of the first signal from the very beginning, and passes every one on to the ranks that there are by then."""

    def __init__(self) -> None:
        self.number, self.since = 0, 0.0
        self.ranks: list[subprocess.Popen[bytes]] = []

    def tell(self, number: int, frame: FrameType | None = None) -> None:
        if not self.number:
            self.number, self.since = number, time.monotonic()
        for rank in self.ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGTERM)


def main() -> None:
    told = Told()
    with handled(told.tell):  # before anything else: a container's first process takes no signal that it has no handler for
        die_with_parent()
        parser = argparse.ArgumentParser(prog="rolecast.launching.ranks", description=__doc__)
        parser.add_argument("stage", help="of the method's schedule")
        parser.add_argument("run", help="the run: a folder, or s3://bucket/prefix/NAME")
        parser.add_argument("--nodes", type=int, default=1)
        parser.add_argument("--procs", type=int, default=1, help="ranks of this node")
        parser.add_argument("--save-seconds", type=float, default=SAVE_SECONDS, help="from SIGTERM until ranks that still run are killed")
        arguments = parser.parse_args()
        with scratch("ranks") as folder:
            try:
                environments = environments_of(arguments.nodes, arguments.procs, folder)
            except InputError as error:
                end(error.exit_code, str(error))
            command = [sys.executable, *LEARNER, arguments.stage, arguments.run]
            for environment in environments:
                if told.number:
                    break
                # Each in a group of its own, so that a signal to this one's reaches them once.
                told.ranks.append(subprocess.Popen(command, env={**os.environ, **environment}, process_group=0))
            if told.number:  # since the last one was started, which may have missed it
                told.tell(told.number)
            ends = ended(told, arguments.save_seconds)
            code, said = headline(ends, folder, arguments.stage, told)
        end(code, said)


def end(code: int, said: str) -> None:
    """One line: the last one on stderr, and what the container's status shows."""
    if code:
        say_error(said)
        say_termination(said)
    sys.exit(code)


def environments_of(nodes: int, procs: int, folder: Path, environ: Mapping[str, str] = os.environ) -> list[dict[str, str]]:
    """What each rank of this node is told. `folder`: where each may write the line that it ends with."""
    node, address, port = (0, "127.0.0.1", free_port()) if nodes == 1 else placed(nodes, environ)
    same = {
        "WORLD_SIZE": nodes * procs, "LOCAL_WORLD_SIZE": procs, "GROUP_RANK": node, "MASTER_ADDR": address, "MASTER_PORT": port,
        **child_of_this(),
    }  # fmt: skip
    named = [{**same, "RANK": node * procs + local, "LOCAL_RANK": local, END: folder / str(local)} for local in range(procs)]
    return [{name: str(value) for name, value in environment.items()} for environment in named]


def placed(nodes: int, environ: Mapping[str, str]) -> tuple[int, str, int]:
    """Number of this node, address and port of the first one, from the variables that both operators set for torchrun."""
    try:
        node, address, port = int(environ["PET_NODE_RANK"]), environ["PET_MASTER_ADDR"], int(environ["PET_MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise InputError(f"this is one of {nodes} nodes, and {error} does not say which; start it as a PyTorchJob or TrainJob") from None
    if not 0 <= node < nodes:
        raise InputError(f"PET_NODE_RANK is {node}, and the job has {nodes} nodes; make nodes and the job's replicas equal")
    return node, address, port


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ended(told: Told, save: float = SAVE_SECONDS, left: float = LEFT_SECONDS) -> list[tuple[int, int]]:
    """Waits for all ranks. Returns (rank of this node, exit code) in the order in which they ended.

    Ranks that were told to end have `save` seconds from then. After one that failed the others, which may wait for it for ever, have
    `left`; those are killed then, and how they ended says nothing.
    """
    ends: dict[int, int] = {}
    last = tell = float("inf")
    while len(ends) < len(told.ranks):
        reap(told.ranks)
        for number, rank in enumerate(told.ranks):
            if number not in ends and rank.poll() is not None:
                ends[number] = of_process(rank.returncode)
                if ends[number] in TOLD:
                    tell = min(tell, time.monotonic() + TELL_SECONDS)
                elif ends[number]:
                    last = min(last, time.monotonic() + left)
        if time.monotonic() > tell and not told.number:
            told.tell(signal.SIGTERM)
        if time.monotonic() > min(last, told.since + save if told.number else last):
            late = [number for number in range(len(told.ranks)) if number not in ends]
            for number in late:
                told.ranks[number].kill()
                told.ranks[number].wait()
            return [*ends.items(), *((number, KILLED) for number in late if told.number)]
        time.sleep(LOOK_SECONDS)
    return list(ends.items())


def reap(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """A container's first process inherits orphans, and has to ask how they ended."""
    if os.getpid() != 1:
        return
    own = {rank.pid for rank in ranks}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None and found.si_pid not in own:
            os.waitpid(found.si_pid, 0)


def headline(ends: Sequence[tuple[int, int]], folder: Path, stage: str, told: Told) -> tuple[int, str]:
    """The exit code and the one line of the rank that says why all of them ended."""
    code = cause(code for _, code in ends) or (128 + told.number if told.number and not ends else 0)
    for number, one in ends:
        if one == code and (folder / str(number)).exists():
            return code, (folder / str(number)).read_text()
    rank = next((number for number, one in ends if one == code), 0)
    if code == KILLED and told.number:
        return code, f"told to end, and {stage} had not saved in time: it goes on from its checkpoint before; give it more grace_seconds"
    if code == KILLED:
        return code, f"rank {rank} of this node was killed; if that was for its memory, raise memory or lower the micro-batch"
    if code in TOLD:
        return code, f"told to end: {stage} had nothing to save since its last checkpoint"
    if code == PEER_LOST:
        return code, "another rank of the job has ended; see what its pod says"
    return code, f"rank {rank} of this node ended with exit code {code}; its output is above"


if __name__ == "__main__":
    main()
