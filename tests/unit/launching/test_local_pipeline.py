"""What a person sees of a pipeline that runs on this machine, and how it ends when a step does not go well."""

from __future__ import annotations

import io
import json
import signal
import threading
import time
from pathlib import Path

import pytest

from rolecast.errors import InputError, Interrupted, RolecastError
from rolecast.launching.local_pipeline import run_here
from rolecast.launching.local_steps import Steps, name_of
from tests.unit.launching.counting_pipeline import counting

# A component's source, as kfp puts it into a file and calls it: here it stands for `kfp.dsl.executor_main` as well.
PRINTED = """[KFP Executor 2026-11-28 07:10:00,115 INFO]: Looking for component `train`
[KFP Executor 2026-11-28 07:10:00,116 INFO]: Got executor_input:
{
    "inputs": {
        "parameterValues": {"stage": "sft"}
    }
}
sft        20/20  2:36 < 0:00  nll 0.418

rolecast: runs/demo has no sft model yet
[KFP Executor 2026-11-28 07:12:48,102 INFO]: Wrote executor output file to out.json.
"""


def step(code: str, out: io.StringIO | None = None) -> Steps:
    """A step whose process runs `code`."""
    steps = Steps(out or io.StringIO())
    source = f"import sys\n{code}\nsys.stdout.flush()\nimport os\nos._exit(0)\n"
    steps.run(["sh", "-ec", "script", source, "--executor_input", "{}", "--function_to_execute", "train"])
    return steps


def test_a_step_is_called_by_its_component_and_its_stage() -> None:
    given = json.dumps({"inputs": {"parameterValues": {"stage": "sft", "run": "r"}}})
    assert name_of(["--executor_input", given, "--function_to_execute", "train"]) == "train sft"
    assert name_of(["--executor_input", "{}", "--function_to_execute", "prepare"]) == "prepare"


def test_steps_are_shown_and_kfp_is_not() -> None:
    out = io.StringIO()
    steps = step(f"print({PRINTED!r})", out)
    title, *lines = out.getvalue().splitlines()
    assert title.endswith(" train")
    assert lines == ["    sft        20/20  2:36 < 0:00  nll 0.418"]
    assert (steps.failed, steps.error) == (False, "runs/demo has no sft model yet")


@pytest.mark.parametrize(
    ("code", "kind", "said", "exit_code"),
    [
        ("print('rolecast: a bad row'); sys.exit(2)", InputError, "a bad row", 2),
        ("print('rolecast: it diverged'); sys.exit(1)", RolecastError, "it diverged", 1),
        ("print('rolecast: saved'); sys.exit(130)", Interrupted, "saved", 130),
        ("sys.exit(143)", Interrupted, "told to end: nothing was to be saved in train", 143),
        ("sys.exit(7)", RolecastError, "step train ended with exit code 7", 1),
        ("import os; os.kill(os.getpid(), 9)", RolecastError, "step train ended with signal SIGKILL", 1),
    ],
)
def test_a_step_that_fails_is_one_line_of_its_own(code: str, kind: type[RolecastError], said: str, exit_code: int) -> None:
    steps = step(code)
    assert steps.failed
    failure = steps.failure()
    assert type(failure) is kind
    assert str(failure).startswith(said)
    assert failure.exit_code == exit_code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_the_steps_own_line_is_what_is_said(number: int) -> None:
    steps = Steps(io.StringIO())

    def tell() -> None:
        while steps._process is None or "waits" not in steps.out.getvalue():  # type: ignore[attr-defined]
            time.sleep(0.01)
        steps.stop(number, None)

    teller = threading.Thread(target=tell)
    teller.start()
    source = """
import os, signal, time
def saved(number, frame):
    print("rolecast: saved", os.getpgid(0) == os.getpid(), flush=True)
    os._exit(128 + number)
signal.signal(signal.SIGTERM, saved)
print("waits", flush=True)
time.sleep(60)
"""
    steps.run(["sh", "-ec", "script", source, "--executor_input", "{}", "--function_to_execute", "train"])
    teller.join()
    failure = steps.failure()
    assert (str(failure), failure.exit_code) == ("saved True", 128 + number)
    assert steps.run(["sh", "-ec", "script", "", "--function_to_execute", "report"]) != 0
    assert "report" not in steps.out.getvalue()  # type: ignore[attr-defined]  # what comes after is not begun


def test_the_last_step_runs_after_one_that_failed_and_hides_nothing_of_it() -> None:
    out = io.StringIO()
    steps = step("print('rolecast: a bad row'); sys.stdout.flush(); sys.exit(2)", out)
    shown = out.getvalue()
    source = "print('# the run: failed', flush=True)\nimport os\nos._exit(0)\n"
    assert steps.run(["sh", "-ec", "script", source, "--executor_input", "{}", "--function_to_execute", "conclude"]) == 0
    assert out.getvalue() == shown
    assert (steps.failed, str(steps.failure()), steps.failure().exit_code) == (True, "a bad row", 2)


def test_a_step_that_failed_is_not_tried_again_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a cluster it is, half a minute later."""
    with pytest.raises(RolecastError, match="told to end"):
        run_here(counting, {"file": str(tmp_path / "tries")})
    assert (tmp_path / "tries").read_text() == "x"
    assert "count" in capsys.readouterr().out
