"""A child process that is to end with its parent does; what a terminal cannot show ends none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecast.config import load_config
from rolecast.methods.registry import find
from rolecast.processes import PARENT
from rolecast.stages.run import create


def child(parent: int) -> int:
    code = "from rolecast.processes import die_with_parent; die_with_parent()"
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, PARENT: str(parent)}, check=False).returncode


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")
def test_a_child_whose_parent_is_gone_before_it_starts_does_not_start() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    assert gone.stdout is None
    while Path(f"/proc/{gone.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert child(gone.pid) == 1  # a zombie
    gone.wait()
    assert child(gone.pid) == 1
    assert child(os.getpid()) == 0


SUMMARY = {
    "method": "decor", "seed": 0, "seconds": {}, "report": "report.html",
    "stages": {"sft": {"em": 0.5, "ci95": [0.4, 0.6], "by_hops": {}, "valid": 1.0, "tokens_per_question": 1, "searches_per_question": 1, "n": 2}},
}  # fmt: skip
PRINTED = {
    "table": "from rolecast.evaluation.table import print_summary; print_summary(Path(sys.argv[1]))",
    "progress": "from rolecast.stages.progress import Progress; [Progress('rl', 2, out=out).update(2) for out in (sys.stdout, sys.stderr)]",
}


def ascii_only(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    return subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, encoding="ascii", check=False)


@pytest.mark.parametrize("what", PRINTED)
def test_what_a_run_prints_fits_any_terminal(what: str, tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    file.write_text(json.dumps(SUMMARY))
    done = ascii_only(
        "-c",
        f"import sys; from pathlib import Path; from rolecast.processes import prepare_process; prepare_process(); {PRINTED[what]}",
        str(file),
    )
    assert (done.returncode, "?" in done.stdout) == (0, True), done.stderr


def test_the_demo_says_what_it_will_do_in_ascii_too(tmp_path: Path) -> None:
    """With a run that is there, of another config: it ends before anything is trained."""
    create(tmp_path / "run", load_config(Path(str(find("decor").preset(""))), ["seed=1"]))
    done = ascii_only("-m", "rolecast.cli.main", "demo", "--run", str(tmp_path / "run"))
    assert done.returncode == 2, done.stderr
    assert f"questions ? {tmp_path / 'run'}" in done.stdout
    assert done.stderr.startswith("rolecast: ")
