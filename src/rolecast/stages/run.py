"""A run: where each stage writes, which config it belongs to, and that one process works in it at a time.

A run lives in a folder, or in a bucket with a folder here as its working copy: artifacts are fetched when a stage asks for
them and published when they are committed, so that pods without a common disk can take a run's stages in turns.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rolecast.config import RunConfig, make_config, read_json
from rolecast.errors import ArtifactError, InputError
from rolecast.ports import Store
from rolecast.processes import die_with_parent
from rolecast.store.artifact import MANIFEST, committed, recover, write_text
from rolecast.store.fencing import FencedStore, only_learner
from rolecast.store.uri import S3, open_store

WORKDIR = "ROLECAST_WORKDIR"
FORMAT = 2  # of a run's folder: stages by name, slots in `slots/`


@dataclass(frozen=True, slots=True)
class Run:
    """`path`: the folder here. `store`, if the run lives in one, holds its artifacts under keys relative to the folder."""

    path: Path
    config: RunConfig
    store: Store | None = None
    location: str = ""  # the store's address

    @property
    def world(self) -> Path:
        return self.path / "world"

    @property
    def index(self) -> Path:
        return self.path / "index"

    @property
    def base(self) -> Path:
        """The run's own start model, where others than the learner need it."""
        return self.path / "base"

    def stage(self, name: str) -> Path:
        return self.path / name

    def model(self, stage: str) -> Path:
        return self.path / stage / "model"

    def evaluation(self, stage: str) -> Path:
        return self.path / "eval" / stage

    @property
    def attempt(self) -> int:
        """Of the learner that works here on a run in a store, from 1; 0 elsewhere."""
        return self.store.attempt if isinstance(self.store, FencedStore) else 0

    def require_attempt(self) -> None:
        """Raises FencedError if a later learner has taken over. Every write of the first rank's does the same."""
        if isinstance(self.store, FencedStore):
            self.store.check()

    def has(self, artifact: Path) -> bool:
        """Whether the artifact is committed, here or in the store; then it is here."""
        if committed(artifact):
            return True
        if self.store is None or not self.store.committed(self.key(artifact)):
            return False
        self.store.fetch(self.key(artifact), artifact)
        return True

    def publish(self, artifact: Path) -> None:
        """Makes a committed artifact of the folder one of the run. One process publishes for a run at a time, so what an
        earlier one left half uploaded under this key is swept away."""
        if self.store is not None:
            if not self.store.committed(self.key(artifact)):
                self.store.delete(self.key(artifact))
            self.store.publish(artifact, self.key(artifact))

    def artifacts(self, folder: Path) -> list[Path]:
        """Places of the artifacts directly below `folder`, here or in the store, sorted."""
        here = {manifest.parent for manifest in folder.glob(f"*/{MANIFEST}")}
        stored = {self.path / key for key in self.store.artifacts(self.key(folder))} if self.store is not None else set()
        return sorted(here | stored)

    def discard(self, artifact: Path) -> None:
        """Deletes an artifact that nothing refers to any more, or that is written anew; one that is not there is no fault."""
        shutil.rmtree(artifact, ignore_errors=True)
        if self.store is not None:
            self.store.delete(self.key(artifact))

    def record(self, file: Path) -> None:
        """Keeps a small file that changes, such as a stage's metrics."""
        if self.store is not None:
            self.store.put(self.key(file), file.read_bytes())

    def recall(self, file: Path) -> Path:
        """The file as it was last recorded, unless the folder has one."""
        if self.store is not None and not file.exists() and (data := self.store.get(self.key(file))) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return file

    def key(self, path: Path) -> str:
        """The name of one of the run's files in its store."""
        return path.relative_to(self.path).as_posix()


def create(location: Path | str, config: RunConfig) -> Run:
    """A new run, or the same run again: a place that holds another config is refused."""
    path, store = _place(location)
    try:
        return _create(location, path, store, config)
    except OSError as error:
        raise InputError(f"{location} cannot be made a run ({error.strerror}); name another folder") from None


def _create(location: Path | str, path: Path, store: Store | None, config: RunConfig) -> Run:
    text = json.dumps({"format": FORMAT, **config.model_dump(mode="json")}, indent=1)
    if store is not None:
        if not store.put("run.json", text.encode(), absent=True):
            _same(location, open_run(location).config, config)
        return Run(path, config, store, str(location))
    refuse_other(path, config)
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "run.json").exists():
        write_text(path / "run.json", text)
    return Run(path, config)


def refuse_other(path: Path, config: RunConfig) -> None:
    """Raises InputError if the folder holds something else than this run."""
    if (path / "run.json").exists():
        _same(path, open_run(path).config, config)
    elif path.exists() and any(path.iterdir()):
        raise InputError(f"{path} exists and is not a run; name another folder")


def prepare(location: Path | str, config: RunConfig, fill: Callable[[Run], object]) -> Run:
    """A run, filled by `fill` with what its stages start from. A new one that cannot be filled for bad input is not left behind."""
    path, store = _place(location)
    new = store.get("run.json") is None if store is not None else not (path / "run.json").exists()
    run = create(location, config)
    try:
        fill(run)
    except InputError:
        if new:
            shutil.rmtree(run.path, ignore_errors=True)
            if run.store is not None:
                run.store.delete("run.json")
        raise
    return run


def erase(path: Path) -> None:
    """Deletes a run's folder, unless a process works in it."""
    with (path / ".lock").open("w") as lock:
        _hold(lock, path)
        shutil.rmtree(path)


def open_run(location: Path | str) -> Run:
    """`location`: a folder, or s3://bucket/prefix/NAME."""
    path, store = _place(location)
    text = store.get("run.json") if store is not None else (path / "run.json").read_bytes() if (path / "run.json").is_file() else None
    if text is None:
        raise InputError(f"{location} is not a run: it has no run.json; start one with `rolecast pipeline run`")
    return Run(path, _read(text.decode(), f"{location}/run.json"), store, str(location) if store is not None else "")


def _read(text: str, origin: str) -> RunConfig:
    """Raises InputError for a run of another format: its models lie elsewhere, and its config says other things."""
    data = read_json(text, origin)
    if isinstance(data, dict) and data.pop("format", 1) != FORMAT:
        raise InputError(
            f"{origin} was written by another version of rolecast (its format is not {FORMAT}); read it with that one, or start the run anew"
        )
    return make_config(data, origin)


def _place(location: Path | str) -> tuple[Path, Store | None]:
    """The folder here, and the store if the run lives in one. Working copies are told apart by the run's whole address."""
    if not str(location).startswith(S3):
        if "://" in str(location) or not str(location):
            raise InputError(f"{str(location)!r} is no place for a run; give a folder or s3://bucket/prefix/NAME")
        return Path(location), None
    if not str(location).removeprefix(S3).strip("/").count("/"):
        raise InputError(f"{location} names no run in a bucket; write s3://bucket/prefix/NAME")
    uri = str(location).rstrip("/")
    work = Path(os.environ.get(WORKDIR) or Path(tempfile.gettempdir()) / "rolecast")
    path = work / f"{uri.rpartition('/')[2]}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}"
    path.mkdir(parents=True, exist_ok=True)
    return path, FencedStore(open_store(uri))


def _same(location: Path | str, present: RunConfig, config: RunConfig) -> RunConfig:
    if present != config:
        changed = [key for key in RunConfig.model_fields if getattr(present, key) != getattr(config, key)]
        raise InputError(f"{location} holds a run with another config (differs in {', '.join(changed)}); name another folder or delete it")
    return present


@contextmanager
def working(run: Run, stage: str, first: bool = True, training: bool = False) -> Iterator[None]:
    """Holds the run's lock and notes how long the stage took. The kernel drops the lock however the process ends.

    In a store, which no kernel watches, training takes the run's next attempt as well. Of the ranks of one job, the `first` does it all.
    """
    if not first:
        yield
        return
    die_with_parent()
    with (run.path / ".lock").open("w") as lock, ExitStack() as stack:
        _hold(lock, run.path)
        recover(run.path)
        if training and isinstance(run.store, FencedStore):
            stack.enter_context(only_learner(run.store, run.location))
        start = time.monotonic()
        yield
        _note_seconds(run, stage, time.monotonic() - start)


def _hold(lock: TextIO, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{path} is in use by another process; wait for it or stop it") from None


def seconds(run: Run) -> dict[str, float]:
    """Wall seconds per stage; a stage that was resumed counts all its attempts that ended."""
    file = run.recall(run.path / "seconds.json")
    if not file.exists():
        return {}
    try:
        return {str(stage): float(spent) for stage, spent in json.loads(file.read_text()).items()}
    except (ValueError, AttributeError, TypeError):
        raise ArtifactError(f"{file} is damaged: it is no record of seconds; delete it") from None


def _note_seconds(run: Run, stage: str, spent: float) -> None:
    noted = seconds(run)
    noted[stage] = round(noted.get(stage, 0.0) + spent, 1)
    write_text(run.path / "seconds.json", json.dumps(noted, indent=1))
    run.record(run.path / "seconds.json")
