"""A child process that is to end with its parent does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rolecast.processes import PARENT


def child(parent: int) -> int:
    code = "from rolecast.processes import die_with_parent; die_with_parent()"
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, PARENT: str(parent)}, check=False).returncode


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")
def test_a_child_whose_parent_is_gone_before_it_starts_does_not_start() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert child(gone.pid) == 1
    assert child(os.getpid()) == 0
