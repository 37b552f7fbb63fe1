"""How the ranks of a job end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolecast.launching.ranks import environments_of
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


def test_ranks_end_when_all_are_done_and_without_the_end_of_the_interpreter(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", RANK], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
        for environment in environments_of(1, 2, tmp_path)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert said == ["rank 0 is done", "rank 1 is done"]


WAITING = """
import sys, time
from rolecast.errors import PeersError
from rolecast.learner.ranks import join
from rolecast.signals import signals_raise
print("here", flush=True)
try:
    with signals_raise():
        join()
except PeersError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
print("joined", flush=True)
time.sleep(60)
"""


def waiting(environment: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", WAITING], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def test_a_rank_that_was_made_anew_does_not_wait_for_a_world_that_it_cannot_join(tmp_path: Path) -> None:
    places = environments_of(1, 2, tmp_path)
    first, second = (waiting(environment) for environment in places)
    assert {process.stdout.readline() for process in (first, second) if process.stdout} == {"joined\n"}
    second.kill()
    second.wait()
    began = time.monotonic()
    again = waiting(places[1])
    said = again.communicate(timeout=60)[0]
    assert (again.returncode, "rank 1 was here before" in said) == (4, True)
    assert time.monotonic() - began < 30
    first.kill()
    first.wait()


def test_sigterm_ends_a_rank_that_waits_for_its_peers(tmp_path: Path) -> None:
    process = waiting(environments_of(1, 2, tmp_path)[1])
    time.sleep(1.0)  # it waits in torch's C++ by now
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == -signal.SIGTERM


def test_a_rank_that_is_alone_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert ranks.join().world == 1
    ranks.leave()
