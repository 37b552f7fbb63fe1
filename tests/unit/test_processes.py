"""A child process that is to end with its parent does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecast.processes import PARENT


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
