"""Runs the tests of a mutant over a copy of the sources that has it.

A server process has imported torch and what else takes seconds; each trial is a fork of it, in a session of its own so that nothing
it started outlives it.
"""

from __future__ import annotations

import compileall
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from tests.mutants.mutant import ROOT, Mutant

FORKS = get_context("forkserver")
# Everything that takes long to import and none of it ours.
IMPORTED = [
    "torch", "transformers.models.llama.modeling_llama", "peft", "pytest", "hypothesis.strategies", "fastapi", "httpx", "minio", "urllib3",
]  # fmt: skip
Fate = Literal["killed", "timed out", "survived"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`by`: the first test that failed, or what else ended the trial."""

    mutant: Mutant | None
    fate: Fate
    by: str
    seconds: float
    output: str


@contextlib.contextmanager
def compiled() -> Iterator[Path]:
    """A copy of the sources with their bytecode: what trials copy."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        shutil.copytree(ROOT / "src", Path(place) / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        compileall.compile_dir(Path(place) / "src", quiet=1)
        yield Path(place) / "src"


def try_out(mutant: Mutant | None, sources: Path, tests: Sequence[str], limit: float, slow: bool = False) -> Outcome:
    """`slow`: slow tests run too. None is the sources as they are. RuntimeError where pytest could not be used at all."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        src = Path(place) / "src"
        shutil.copytree(sources, src)
        if mutant is not None:
            file = src / "rolecast" / mutant.file
            file.write_text(mutant.text)
            for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
                stale.unlink()
        told = Path(place) / "output"
        process = FORKS.Process(target=_run, args=(src, list(tests), told, "" if slow else "not slow"))
        process.start()
        process.join(limit)
        late = process.is_alive()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # also what it left running
        process.join()
        output, seconds = told.read_text() if told.exists() else "", time.monotonic() - begun
    if late:
        return Outcome(mutant, "timed out", f"{limit:.0f} s", seconds, output)
    if process.exitcode == 0:
        return Outcome(mutant, "survived", "", seconds, output)
    if process.exitcode in (4, 5):
        raise RuntimeError(f"pytest cannot run {' '.join(tests)}:\n{output}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return Outcome(mutant, "killed", failed[1] if failed else f"exit code {process.exitcode}", seconds, output)


def _run(src: Path, tests: list[str], told: Path, marked: str) -> None:
    os.setsid()
    file = os.open(told, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(ROOT)
    sys.path[:0] = [str(src), str(ROOT / "pipelines")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # of processes that tests start
    sys.dont_write_bytecode = False  # or the tests are rewritten in every trial
    import pytest

    code = int(pytest.main(["-x", "-q", "-m", marked, "-p", "no:cacheprovider", "-W", "ignore", *tests]))
    where = getattr(sys.modules.get("rolecast"), "__file__", None)
    if code == 0 and (where is None or not Path(where).is_relative_to(src)):
        print(f"the tests ran {where}, not the copy in {src}")
        code = 4
    sys.stdout.flush()
    os._exit(code)  # threads that the tests left behind are not waited for
