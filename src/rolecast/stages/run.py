"""A run: where each stage writes, and which config it belongs to.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.formats import KEY, RUN, SINCE
from rolecast.identity import Change, changes, digest
from rolecast.ports import Store
from rolecast.reading import read_json
from rolecast.stage_settings import TrainedConfig
from rolecast.store.artifact import MANIFEST, committed, digest_of, write_text
from rolecast.store.fencing import FencedStore
from rolecast.store.uri import S3, manifest_at, open_store
from rolecast.types import Stage
from rolecast.working_copies import working_copy

WORKDIR = "ROLECAST_WORKDIR"


@dataclass(frozen=True, slots=True)
class Run:
    """`path`: the folder here. `store`, if the run lives in one, holds its artifacts under keys relative to the folder.

    `shared`: digests of what the run takes from elsewhere, by the setting that names the address.
    """

    path: Path
    config: RunConfig
    store: Store | None = None
    location: str = ""  # the store's address
    shared: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Its address, as a command takes it."""
        return self.location or str(self.path)

    @property
    def fingerprint(self) -> str:
        """Of what is computed: the config's own, with what lies at the addresses that it names."""
        if not self.shared:
            return self.config.fingerprint
        return hashlib.sha256(json.dumps([self.config.fingerprint, dict(self.shared)], sort_keys=True).encode()).hexdigest()[:12]

    @property
    def made(self) -> dict[str, str]:
        """What its artifacts say of the config: its fingerprint, and the digest of what no run changes while it goes on."""
        return {"config": self.fingerprint, "fixed": digest(self.config, ("result",))}

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

    def questions(self, stage: str) -> Path:
        """What a rollout stage prepared."""
        return self.path / stage / "questions"

    def result(self, stage: Stage) -> Path:
        """What a stage ends with."""
        return self.model(stage.name) if stage.trains else self.questions(stage.name)

    def evaluation(self, stage: str, profile: str = "") -> Path:
        """Of a stage's model, under another evaluation profile than ours beside it."""
        return self.path / "eval" / (f"{stage}.{profile}" if profile else stage)

    @property
    def attempt(self) -> int:
        """Of the learner that works here on a run in a store, from 1; 0 elsewhere."""
        return self.store.attempt if isinstance(self.store, FencedStore) else 0

    def require_attempt(self) -> None:
        """Raises FencedError if a later learner has taken over. Every write of the first rank's does the same."""
        if isinstance(self.store, FencedStore):
            self.store.check()

    def manifest(self, artifact: Path) -> bytes | None:
        """Of an artifact that is committed, here or in the store; the artifact itself is not fetched for it."""
        if committed(artifact):
            return (artifact / MANIFEST).read_bytes()
        return self.store.get(f"{self.key(artifact)}/{MANIFEST}") if self.store is not None else None

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

    def forget(self, file: Path) -> None:
        """Deletes a file that is of no use any more, and what was recorded of it."""
        file.unlink(missing_ok=True)
        if self.store is not None:
            self.store.delete(self.key(file))

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
    """A new run, or the same run again: a place that holds a run of another config is refused.

    What only says how it is run may have changed, and what may change while a stage trains; then the run has the new config.
    """
    path, store = _place(location)
    try:
        return _create(location, path, store, config)
    except OSError as error:
        raise InputError(f"{location} cannot be made a run ({error.strerror}); name another folder") from None


def _create(location: Path | str, path: Path, store: Store | None, config: RunConfig) -> Run:
    present = _present(location, path, store)
    if present is not None:
        return _go_on(present, config)
    if store is None and path.exists() and any(path.iterdir()):
        raise InputError(f"{path} exists and is not a run; name another folder")
    run = Run(path, config, store, str(location) if store is not None else "", _digests(config))
    if store is not None:
        return run if store.put("run.json", _written(run).encode(), absent=True) else _go_on(open_run(location), config)
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / "run.json", _written(run))
    return run


def refuse_other(path: Path, config: RunConfig) -> None:
    """Raises InputError if the folder holds something else than this run."""
    if (path / "run.json").exists():
        allowed_changes(open_run(path), config)
    elif path.exists() and any(path.iterdir()):
        raise InputError(f"{path} exists and is not a run; name another folder")


def allowed_changes(run: Run, config: RunConfig) -> list[Change]:
    """How the config differs from the run's. Raises InputError for what would make it another run."""
    found = changes(run.config, config)
    fixed = [change for change in found if change.part == "result" or (change.part == "shape" and run.config.lockstep)]
    if fixed:
        more = f", and {len(fixed) - 1} more" if len(fixed) > 1 else ""
        lockstep = "; a run in lockstep repeats to the last bit, so how its work is cut is fixed too" if fixed[0].part == "shape" else ""
        raise InputError(
            f"{run.place} holds a run with another config (differs in {fixed[0]}{more}); name another folder or delete it{lockstep}"
        )
    for change in found:
        stage = change.key.split(".")[1] if change.part == "segment" else ""
        if stage and run.manifest(run.model(stage)) is not None:
            raise InputError(f"{run.place}: stage {stage} has ended, so {change} changes nothing; leave it as it was")
    return found


def _go_on(run: Run, config: RunConfig) -> Run:
    found = allowed_changes(run, config)
    if not found:
        return run
    moved = replace(run, config=config, shared=_digests(config, run))
    for key in sorted({*run.shared, *moved.shared}):
        if run.shared.get(key) != moved.shared.get(key):
            raise InputError(
                f"{run.place}: {key} names another artifact than the run was made with; give back the old one or make another run"
            )
    if run.store is not None:
        run.store.put("run.json", _written(moved).encode())
        return moved
    with (run.path / ".lock").open("w") as lock:
        hold(lock, run.path)  # a process that works in the run goes by the config that it began with
        write_text(run.path / "run.json", _written(moved))
    return moved


def _digests(config: RunConfig, before: Run | None = None) -> dict[str, str]:
    """Of what lies at the config's addresses. One that did not change is not asked again: what lay there may be gone."""
    named = _addresses(config)
    known = _addresses(before.config) if before is not None else {}
    return {
        key: before.shared[key] if before is not None and known.get(key) == uri else digest_of(manifest_at(uri))
        for key, uri in named.items()
    }


def _addresses(config: RunConfig) -> dict[str, str]:
    named = {
        "retriever.index": config.retriever.index,
        **{f"stages.{name}.model": stage.model for name, stage in config.stages.items() if isinstance(stage, TrainedConfig)},
    }
    return {key: uri for key, uri in named.items() if uri}


def _written(run: Run) -> str:
    return json.dumps({KEY: RUN.current, "shared": dict(run.shared), **run.config.model_dump(mode="json")}, indent=1)


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
        hold(lock, path)
        shutil.rmtree(path)


def open_run(location: Path | str) -> Run:
    """`location`: a folder, or s3://bucket/prefix/NAME."""
    run = _present(location, *_place(location))
    if run is None:
        raise InputError(f"{location} is not a run: it has no run.json; start one with `rolecast pipeline run`")
    return run


def _present(location: Path | str, path: Path, store: Store | None) -> Run | None:
    text = store.get("run.json") if store is not None else (path / "run.json").read_bytes() if (path / "run.json").is_file() else None
    if text is None:
        return None
    config, shared = _read(text.decode(), f"{location}/run.json")
    return Run(path, config, store, str(location) if store is not None else "", shared)


def _read(text: str, origin: str) -> tuple[RunConfig, dict[str, str]]:
    """Raises InputError for a run of another format: its models lie elsewhere, and its config says other things."""
    data = read_json(text, origin)
    shared = {}
    if isinstance(data, dict):
        RUN.check(data, origin)
        data = {key: value for key, value in data.items() if key not in (KEY, SINCE)}
        shared = data.pop("shared", {})
    return make_config(data, origin), shared


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
    working_copy(path, uri)
    return path, FencedStore(open_store(uri))


def hold(lock: TextIO, path: Path) -> None:
    """Raises InputError where another process holds the run's lock. The kernel drops it however that process ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{path} is in use by another process; wait for it or stop it") from None
