"""`Store` over a folder: for a laptop, for tests, and for a volume that pods share."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from rolecast.errors import ArtifactError
from rolecast.store.artifact import MANIFEST, committed, receiving, verified
from rolecast.store.keys import checked, missing, require_same

_LEFT = re.compile(r"\.+(.+?)(?:\.[0-9a-f]{8}|\.staged|\.partial)+")  # what a publish that was killed leaves beside its key
_BEING_PUT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
TRIES = 3  # at a record whose folder others clear or delete meanwhile


class LocalStore:
    """A publish copies beside the key and renames; renaming onto a folder that is not empty fails, so one of many writers wins."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def publish(self, folder: Path, key: str) -> None:
        manifest, target = verified(folder), self.root / checked(key)
        if not committed(target):
            staged = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.staged")
            try:
                _copy(folder, staged, manifest)
                staged.rename(target)
            except OSError:
                if not committed(target):
                    raise ArtifactError(
                        f"{target} has files but no {MANIFEST}, or cannot be written; delete it, then publish again"
                    ) from None
            finally:
                shutil.rmtree(staged, ignore_errors=True)
        require_same((target / MANIFEST).read_bytes(), manifest, str(target))

    def fetch(self, key: str, folder: Path) -> Path:
        source = self.root / checked(key)
        if not committed(source):
            raise missing(str(source))
        manifest = (source / MANIFEST).read_bytes()
        if not holds(folder, manifest):
            _copy(source, folder, manifest)
        return folder

    def committed(self, key: str) -> bool:
        return committed(self.root / checked(key))

    def artifacts(self, prefix: str) -> list[str]:
        found = (file.parent.relative_to(self.root) for file in (self.root / checked(prefix, prefix=True)).rglob(MANIFEST))
        return sorted(str(path) for path in found if not any(part.startswith(".") for part in path.parts))

    def unfinished(self, prefix: str) -> list[str]:
        root = self.root / checked(prefix, prefix=True)
        found = ((path.relative_to(self.root), _LEFT.fullmatch(path.name)) for path in root.rglob(".*") if path.is_dir())
        return sorted({str(path.with_name(left[1])) for path, left in found if left})

    def put(self, key: str, data: bytes, *, absent: bool = False) -> bool:
        target = self.root / checked(key)
        for _ in range(TRIES):
            target.parent.mkdir(parents=True, exist_ok=True)
            _clear(target.parent)
            with suppress(FileNotFoundError):  # another process took it for one that was left, or deleted the folder
                return _put(target, data, absent)
        raise ArtifactError(f"{target} cannot be written: what is put into its folder is gone at once; see what else deletes there")

    def get(self, key: str) -> bytes | None:
        try:
            return (self.root / checked(key)).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def keys(self, prefix: str) -> list[str]:
        found = (path.relative_to(self.root) for path in (self.root / checked(prefix, prefix=True)).rglob("*") if path.is_file())
        return sorted(str(path) for path in found if not any(part.startswith(".") for part in path.parts))

    def delete(self, prefix: str) -> None:
        target = self.root / checked(prefix)
        for manifest in target.rglob(MANIFEST):
            manifest.unlink(missing_ok=True)
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)


def holds(folder: Path, manifest: bytes) -> bool:
    """Whether `folder` is already a sound copy: a restarted pod finds what it fetched before."""
    try:
        return committed(folder) and verified(folder) == manifest
    except ArtifactError:
        return False


def _put(target: Path, data: bytes, absent: bool) -> bool:
    """Through a file beside it, which is locked until it has its name."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("xb") as file:
            with suppress(OSError):  # a file system without locks: nobody clears there
                fcntl.flock(file, fcntl.LOCK_EX)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if absent:
                os.link(temporary, target)  # unlike a rename, fails if the name is taken
            else:
                os.replace(temporary, target)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _clear(folder: Path) -> None:
    """Removes what writers left there that were killed. The kernel dropped their locks."""
    names: list[str] = []
    with suppress(OSError):  # one may write into a folder that one may not list
        names = os.listdir(folder)
    for name in filter(_BEING_PUT.fullmatch, names):
        with suppress(OSError), (folder / name).open("r+b") as left:
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / name).unlink()


def _copy(source: Path, target: Path, manifest: bytes) -> None:
    with receiving(target, manifest, str(source)) as (partial, files):
        for name in files:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(source / name, partial / name)
            except FileNotFoundError:
                raise ArtifactError(f"{source / name} is missing; delete {source} and publish it again") from None
