"""A run's folder: where each stage writes, which config it belongs to, and that one process works in it at a time."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rolecast.config import RunConfig, read_json_config
from rolecast.errors import InputError
from rolecast.store.artifact import recover, write_text

PARENT = "ROLECAST_DIE_WITH_PARENT"


@dataclass(frozen=True, slots=True)
class Run:
    path: Path
    config: RunConfig

    @property
    def world(self) -> Path:
        return self.path / "world"

    @property
    def index(self) -> Path:
        return self.path / "index"

    def stage(self, name: str) -> Path:
        return self.path / name

    def model(self, stage: str) -> Path:
        return self.path / stage / "model"

    def evaluation(self, stage: str) -> Path:
        return self.path / "eval" / stage


def create(path: Path, config: RunConfig) -> Run:
    """A new run, or the same run again: a folder that holds another config is refused."""
    file = path / "run.json"
    if file.exists():
        present = open_run(path).config
        if present != config:
            changed = [key for key in RunConfig.model_fields if getattr(present, key) != getattr(config, key)]
            raise InputError(f"{path} holds a run with another config (differs in {', '.join(changed)}); name another folder or delete it")
        return Run(path, present)
    if path.exists() and any(path.iterdir()):
        raise InputError(f"{path} exists and is not a run; name another folder")
    path.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(config.model_dump(mode="json"), indent=1))
    return Run(path, config)


def open_run(path: Path) -> Run:
    file = path / "run.json"
    if not file.is_file():
        raise InputError(f"{path} is not a run: it has no run.json; start one with `rolecast pipeline run`")
    return Run(path, read_json_config(file.read_text(), str(file)))


@contextmanager
def working(run: Run, stage: str) -> Iterator[None]:
    """Holds the run's lock and notes how long the stage took. The kernel drops the lock however the process ends."""
    _die_with_parent()
    with (run.path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{run.path} is in use by another process; wait for it or stop it") from None
        recover(run.path)
        start = time.monotonic()
        yield
        _note_seconds(run, stage, time.monotonic() - start)


def seconds(run: Run) -> dict[str, float]:
    """Wall seconds per stage; a stage that was resumed counts all its attempts that ended."""
    file = run.path / "seconds.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _note_seconds(run: Run, stage: str, spent: float) -> None:
    noted = seconds(run)
    noted[stage] = round(noted.get(stage, 0.0) + spent, 1)
    write_text(run.path / "seconds.json", json.dumps(noted, indent=1))


def _die_with_parent() -> None:
    """A stage started by the local pipeline ends when the pipeline is killed, so that it cannot write beside its successor."""
    if sys.platform == "linux" and os.environ.get(PARENT):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(os.environ[PARENT]) and os.getppid() == 1:
            sys.exit(1)
