from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from rolecast.errors import InputError, Interrupted, NamedStop, RolecastError
from rolecast.launching.failure import DeadlineExceeded, JobFailed
from rolecast.launching.local import LocalLauncher, command
from rolecast.launching.spec import TrainingJobSpec, read_spec


def spec(**changes: Any) -> TrainingJobSpec:
    return read_spec({"run": "/runs/a", "stage": "sft", "image": "-", "procs_per_node": 2, **changes})


def child(code: str) -> Any:
    return lambda spec: [sys.executable, "-c", textwrap.dedent(code)]


def test_the_starter_gets_the_processes_and_the_learners_arguments() -> None:
    assert command(spec())[1:] == ["-m", "rolecast.launching.ranks", "sft", "/runs/a", "--procs=2"]


def test_a_job_that_ends_well_passes_its_output_on() -> None:
    said: list[str] = []
    outcome = LocalLauncher(child("import os; print('zero', os.environ['ROLECAST_ZERO_STAGE'])"), said.append).run(spec(zero_stage=2))
    assert said == ["zero 2"]
    assert outcome.name == spec().job_name


def test_rank_and_world_size_are_left_to_the_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    LocalLauncher(child("import os; assert not {'RANK', 'WORLD_SIZE'} & set(os.environ)")).run(spec())


def test_a_failure_shows_exit_code_and_last_lines() -> None:
    with pytest.raises(JobFailed, match="exit code 3") as caught:
        LocalLauncher(child("for i in range(100): print('line', i)\nraise SystemExit(3)"), lambda line: None).run(spec())
    assert "    line 99" in caught.value.report
    assert "    line 9\n" not in caught.value.report


@pytest.mark.parametrize(("code", "kind"), [(2, InputError), (3, NamedStop), (130, Interrupted), (143, Interrupted)])
def test_the_line_that_the_ranks_end_with_is_the_launchers_and_is_not_said_twice(code: int, kind: type[RolecastError]) -> None:
    said: list[str] = []
    with pytest.raises(kind) as caught:
        LocalLauncher(child(f"print('a'); print('rolecast: one'); print('rolecast: two'); raise SystemExit({code})"), said.append).run(
            spec()
        )
    assert (str(caught.value), caught.value.exit_code, said) == ("one", code, ["a"])


def test_a_signal_is_named() -> None:
    with pytest.raises(JobFailed, match="SIGKILL"):
        LocalLauncher(child("import os; os.kill(os.getpid(), 9)")).run(spec())


def test_a_job_that_runs_too_long_is_stopped_with_all_its_processes(tmp_path: Path) -> None:
    sleeper = f"""
        import subprocess, sys, time
        inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(inner.pid))
        time.sleep(60)
    """
    with pytest.raises(DeadlineExceeded, match=r"deadlines\.running"):
        LocalLauncher(child(sleeper), grace_seconds=5).run(spec(deadlines={"running": 2}))
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_more_than_one_node_is_refused() -> None:
    with pytest.raises(InputError, match="set nodes to 1 or launch on a cluster"):
        LocalLauncher(child("")).run(spec(nodes=2))


def test_sigterm_stops_the_job_and_exits_non_zero(tmp_path: Path) -> None:
    code = f"""
        import sys
        from rolecast.launching.local import LocalLauncher
        from rolecast.launching.spec import read_spec
        inner = [sys.executable, "-c", "import os, time; open({str(tmp_path / "pid")!r}, 'w').write(str(os.getpid())); time.sleep(60)"]
        LocalLauncher(lambda spec: inner).run(read_spec({{"run": "/runs/a", "stage": "sft", "image": "-"}}))
    """
    step = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    step.send_signal(signal.SIGTERM)
    assert step.wait(timeout=30) == 143
    wait_until_gone(int((tmp_path / "pid").read_text()))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":  # ended, and nobody has asked how
            return
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)
