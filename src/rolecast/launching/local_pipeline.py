"""Runs the compiled job's pipeline on this machine, step by step, each step a process of its own (kfp.local)."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rolecast.errors import InputError, RolecastError
from rolecast.installed import MissingPackageError, extras, missing
from rolecast.schedule import Schedule

if TYPE_CHECKING:
    from rolecast.config import RunConfig

log = logging.getLogger(__name__)


def run_local(path: Path, config: RunConfig) -> None:
    """Blocks until the pipeline ended. Finished stages of the run are found and not run again."""
    if lacking := missing(extras()["train"]):  # before any work, and not inside a step
        raise MissingPackageError(lacking[0], "local")
    from kfp import local
    from rolecast_pipelines.schedule import make_pipeline

    from rolecast.processes import PARENT
    from rolecast.stages.run import refuse_other

    refuse_other(path, config)  # here, in one line, not inside a step
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(path / ".kfp"), raise_on_error=True)
    os.environ[PARENT] = str(os.getpid())
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    output = _StepOutput(sys.stdout)
    try:
        with warnings.catch_warnings(), redirect_stdout(output):
            warnings.filterwarnings("ignore", r"Task '.*': settings", UserWarning)  # display names, which a cluster shows
            warnings.filterwarnings(
                "ignore", "You may be attemping", RuntimeWarning
            )  # images count on a cluster; here every step is a process
            make_pipeline(config.schedule)(run=str(path.resolve()), config=config.model_dump_json())
    except RuntimeError as error:
        reason = output.error or f"{_COLOUR.sub('', ' '.join(str(error).split()))[:300]}; its output is above"
        raise RolecastError(f"a step of the pipeline failed: {reason}") from error
    finally:
        del os.environ[PARENT]


def compile_pipeline(out: Path, schedule: Schedule) -> None:
    """Writes the YAML of the schedule's pipeline, byte for byte the same for the same code."""
    from kfp import compiler
    from rolecast_pipelines.schedule import make_pipeline

    try:
        if out.is_dir():
            raise InputError(f"{out} is a folder; name a file in it that ends in .yaml")
        if out.suffix not in (".yaml", ".yml"):
            raise InputError(f"{out}: name a file that ends in .yaml")
        if not out.parent.is_dir():
            raise InputError(f"{out.parent} is no directory; create it or choose another --out")
        compiler.Compiler().compile(make_pipeline(schedule), str(out))
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); choose another place or make room") from None


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BY_KFP = re.compile(r"([\d:]+)\.\d+ - INFO - (?:Executing task '(.+)')?")


class _StepOutput(io.TextIOBase):
    """What the steps print, under their names, without kfp's account of itself. Keeps the error line of a failed step."""

    def __init__(self, out: TextIO) -> None:
        self.error = ""
        self._out = out
        self._line = ""
        self._hidden_until = ""  # the line that ends a listing of a step's inputs or outputs

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if (shown := self._shown(_COLOUR.sub("", line).rstrip())) is not None:
                self._out.write(shown + "\n")
                self._out.flush()
        return len(text)

    def _shown(self, line: str) -> str | None:
        if self._hidden_until:
            if line.startswith(self._hidden_until):
                self._hidden_until = ""
            return None
        if "[KFP Executor" in line:
            self._hidden_until = "    }" if line.endswith("Got executor_input:") else ""
            return None
        if by_kfp := _BY_KFP.match(line):
            self._hidden_until = "---" if line.endswith(" outputs:") else ""
            return f"{by_kfp[1]} {by_kfp[2]}" if by_kfp[2] else None
        if line.strip().startswith("rolecast: "):
            self.error = line.strip().removeprefix("rolecast: ")
        return line if line.strip(" -") else None
