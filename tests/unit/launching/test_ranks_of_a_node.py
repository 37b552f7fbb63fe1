"""The first process of a learner's container, with ranks that are small scripts: exit codes, the one line, signals, grace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rolecast.errors import InputError
from rolecast.launching.ranks import Told, ended, environments_of, headline
from rolecast.processes import END, TERMINATION, TERMINATION_BYTES, say_termination

# A learner of the tests' own, found before ours: each rank runs the script that RANK_<number> holds.
LEARNER = """
import os, pathlib, signal, sys, time
def say(text): pathlib.Path(os.environ["ROLECAST_END_FILE"]).write_text(text)
def there(name): pathlib.Path(os.environ["THERE"], name).write_text(str(os.getpid()))
exec(os.environ["RANK_" + os.environ["RANK"]])
"""
STARTER = """
import rolecast.launching.ranks as ranks
ranks.LEARNER = ["-c", {learner!r}]
ranks.main()
"""
SAVES = (
    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep({0}), say('saved'), os._exit(143))); there(os.environ['RANK']); time.sleep(60)"
)
WAITS = "there(os.environ['RANK']); time.sleep(60)"


class Node:
    """The process that starts the ranks, as a container's command is: alone in a session."""

    def __init__(self, folder: Path, *ranks: str, flags: Sequence[str] = (), first: bool = False) -> None:
        self.folder, self.log = folder, folder / "termination-log"
        self.log.touch()
        scripts = {f"RANK_{number}": textwrap.dedent(rank) for number, rank in enumerate(ranks)}
        command = [sys.executable, "-c", STARTER.format(learner=LEARNER), "sft", "/runs/a", f"--procs={len(ranks)}", *flags]
        self.process = subprocess.Popen(
            (["unshare", "--pid", "--fork", "--kill-child"] if first else []) + command,
            env={**os.environ, **scripts, TERMINATION: str(self.log), "THERE": str(folder)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def until(self, *names: str) -> None:
        deadline = time.monotonic() + 30
        while not all((self.folder / name).exists() and (self.folder / name).read_text() for name in names):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ended(self) -> tuple[int, str]:
        """The exit code and the one line, which stderr and the termination log both have."""
        out, errors = self.process.communicate(timeout=60)
        said = [line for line in (out + errors).splitlines() if line.startswith("rolecast: ")]
        assert said == ([self.log.read_text()] if self.process.returncode else [])
        return self.process.returncode, said[0].removeprefix("rolecast: ") if said else ""


@pytest.mark.parametrize(
    ("ranks", "code", "said"),
    [
        (("", ""), 0, ""),
        (("say('bad'); sys.exit(2)", "time.sleep(0.5); say('worse'); sys.exit(2)"), 2, "bad"),
        (("time.sleep(0.6); sys.exit(4)", "say('named'); sys.exit(3)"), 3, "named"),
        (("sys.exit(4)", "time.sleep(0.6); say('why'); sys.exit(1)"), 1, "why"),  # who lost the other was faster
        (("sys.exit(4)", "sys.exit(4)"), 4, "another rank of the job has ended; see what its pod says"),
        (
            ("sys.exit(4)", "os.kill(os.getpid(), 9)"),
            137,
            "rank 1 of this node was killed; if that was for its memory, raise memory or lower",
        ),
        (("", "os.kill(os.getpid(), 11)"), 139, "rank 1 of this node ended with exit code 139; its output is above"),
        (("sys.exit(7)", ""), 7, "rank 0 of this node ended with exit code 7; its output is above"),
    ],
)
def test_the_rank_that_says_why_gives_exit_code_and_line(tmp_path: Path, ranks: Sequence[str], code: int, said: str) -> None:
    got, line = Node(tmp_path, *ranks).ended()
    assert (got, line[: len(said)]) == (code, said)


def test_ranks_that_save_after_sigterm_have_the_grace_for_it(tmp_path: Path) -> None:
    node = Node(tmp_path, SAVES.format(2), SAVES.format(2), flags=["--save-seconds=8"])
    node.until("0", "1")
    node.process.send_signal(signal.SIGTERM)
    assert node.ended() == (143, "saved")


def test_ranks_that_have_not_saved_within_the_grace_are_killed_and_that_is_said(tmp_path: Path) -> None:
    node = Node(tmp_path, SAVES.format(30), SAVES.format(0), flags=["--save-seconds=1"])
    node.until("0", "1")
    began = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    code, said = node.ended()
    assert (code, "had not saved in time" in said, "grace_seconds" in said) == (137, True, True)
    assert time.monotonic() - began < 10


def test_a_rank_that_is_told_by_somebody_else_takes_the_others_along(tmp_path: Path) -> None:
    node = Node(tmp_path, "say('told'); sys.exit(143)", SAVES.format(0))
    assert node.ended() == (143, "told")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or shutil.which("unshare") is None, reason="a PID namespace takes root")
@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_sigterm_ends_a_containers_first_process_before_while_and_after_its_ranks_start(tmp_path: Path, when: str) -> None:
    """The kernel gives a namespace's first process no signal that it has no handler for."""
    waits = {"before": "", "while": "", "after": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); " + WAITS}
    node = Node(tmp_path, *[waits[when] or WAITS] * 2, first=True, flags=["--save-seconds=20"])
    if when == "after":
        node.until("0", "1")
    first = child_of(node.process.pid)
    if when == "before":
        wait_for_handler(first)
    elif when == "while":
        child_of(first)
    began = time.monotonic()
    os.kill(first, signal.SIGTERM)
    code, said = node.ended()
    assert (code, said[:12]) == (143, "told to end:")
    assert time.monotonic() - began < 10


def children(pid: int) -> list[int]:
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def child_of(pid: int) -> int:
    deadline = time.monotonic() + 20
    while True:
        if found := children(pid):
            return found[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def wait_for_handler(pid: int) -> None:
    """Until it has one for SIGTERM."""
    deadline = time.monotonic() + 20
    while True:
        caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_ranks_that_wait_for_one_that_failed_are_ended() -> None:
    told = Told()
    told.ranks = [subprocess.Popen([sys.executable, "-c", end]) for end in ("raise SystemExit(1)", "import time; time.sleep(60)")]
    assert ended(told, left=0.1) == [(0, 1)]
    assert told.ranks[1].returncode == -signal.SIGKILL


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0 or shutil.which("unshare") is None, reason="a PID namespace takes root")
def test_orphans_of_a_rank_are_asked_how_they_ended(tmp_path: Path) -> None:
    orphan = "import os, time; os.fork() and os._exit(0); time.sleep(0.3)"
    node = Node(tmp_path, f"import subprocess; subprocess.run([sys.executable, '-c', {orphan!r}]); time.sleep(2)", first=True)
    first = child_of(node.process.pid)
    seen: dict[int, list[str]] = {}
    while node.process.poll() is None:
        for child in children(first):
            if (stat := Path(f"/proc/{child}/stat")).exists():
                seen.setdefault(child, []).append(stat.read_text().rpartition(")")[2].split()[0])
        time.sleep(0.02)
    assert len(seen) == 2, "the orphan did not come to the first process"
    assert all(states.count("Z") < 10 for states in seen.values())


def test_the_ranks_of_several_nodes_are_placed_by_what_the_operators_say(tmp_path: Path) -> None:
    said = {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "a-master-0", "PET_MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "2"}
    first, second = environments_of(3, 2, tmp_path, said)
    assert [(e["RANK"], e["LOCAL_RANK"], e["GROUP_RANK"], e["WORLD_SIZE"]) for e in (first, second)] == [
        ("2", "0", "1", "6"),
        ("3", "1", "1", "6"),
    ]
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"], e["LOCAL_WORLD_SIZE"]) for e in (first, second)} == {("a-master-0", "23456", "2")}
    assert first[END] != second[END]


@pytest.mark.parametrize("changed", [{"PET_NODE_RANK": "2"}, {"PET_NODE_RANK": "x"}, {"PET_MASTER_ADDR": None}])
def test_a_node_that_is_not_told_its_place_says_so(tmp_path: Path, changed: dict[str, str | None]) -> None:
    said = {"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "1", **changed}
    with pytest.raises(InputError):
        environments_of(2, 1, tmp_path, {name: value for name, value in said.items() if value is not None})


def test_a_termination_message_is_one_line_within_what_kubernetes_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TERMINATION, str(tmp_path / "log"))
    say_termination("nowhere")
    assert not (tmp_path / "log").exists()  # this is no container
    (tmp_path / "log").touch()
    say_termination("a\nbc " + "é" * 5000)
    written = (tmp_path / "log").read_bytes()
    assert len(written) == TERMINATION_BYTES - 1  # half a character would be more
    assert written.decode().startswith("rolecast: a bc é")


def test_a_signal_before_the_ranks_start_keeps_them_from_it() -> None:
    early = "import os\nranks.die_with_parent = lambda: os.kill(os.getpid(), 15)\nranks.subprocess.Popen = None\nranks.main()"
    told = STARTER.replace("ranks.main()", early).format(learner=LEARNER)
    done = subprocess.run([sys.executable, "-c", told, "sft", "/runs/a"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "rolecast: told to end: sft had nothing to save since its last checkpoint\n")


def test_no_rank_that_was_started_is_a_job_that_was_told_before(tmp_path: Path) -> None:
    told = Told()
    told.tell(signal.SIGTERM)
    assert headline([], tmp_path, "sft", told) == (143, "told to end: sft had nothing to save since its last checkpoint")
