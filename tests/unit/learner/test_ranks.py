"""How the ranks of a job end together."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rolecast.launching.ranks import environments
from rolecast.learner import ranks

RANK = """
import atexit, sys, time
from rolecast.learner.ranks import join, leave
rank = join().rank
atexit.register(print, "the interpreter ended")
time.sleep(0.5 * rank)
print(f"rank {rank} is done", end="")
leave()
"""


def test_ranks_end_when_all_are_done_and_without_the_end_of_the_interpreter() -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", RANK], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
        for environment in environments(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert said == ["rank 0 is done", "rank 1 is done"]


def test_a_rank_that_is_alone_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ranks.join().world == 1
    ranks.leave()
