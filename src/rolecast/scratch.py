"""Temporary folders that go with their process, however it ends.

A process has one folder below the temporary directory, or below that of the process of ours that started it, and all that it makes for a
while lies there. It is removed at the interpreter's end, and before the process ends at once (`leave`). A process that is killed removes
nothing: while it lives it holds a lock on its folder, which the kernel drops, and the next one to make a folder there clears what nobody
holds.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PREFIX = "rolecast-tmp-"
PLACE = "ROLECAST_SCRATCH"  # of the process that started this one
TRIES = 5  # at removing what a child that was just killed may still write to
NAP = 0.02


@dataclass(frozen=True, slots=True)
class _Held:
    """A folder that this process has locked. A process that was forked has none of them."""

    path: Path
    lock: int
    pid: int


_OWN: list[_Held] = []
_WITHIN: list[_Held] = []  # other places


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A new folder, removed at the end."""
    folder = kept(name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kept(name: str) -> Path:
    """A new folder that stays until this process ends."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=own()))


def own() -> Path:
    """The folder of this process."""
    for held in _OWN:
        if held.pid == os.getpid():
            return held.path
    given = Path(os.environ.get(PLACE, ""))
    parent = given if os.environ.get(PLACE) and given.is_dir() else Path(tempfile.gettempdir())
    clear(parent)
    held = _made(parent)
    _OWN.append(held)
    return held.path


@contextmanager
def scratch_in(parent: Path) -> Iterator[Path]:
    """As `scratch`, for what is too large for a temporary directory, or is to be moved within a file system. Its name begins with a dot."""
    clear(parent)
    held = _made(parent, f".{PREFIX}")
    _WITHIN.append(held)
    try:
        yield held.path
    finally:
        if held in _WITHIN:
            _WITHIN.remove(held)
            _remove(held)


def clear(parent: Path) -> None:
    """Removes what processes of this user left in `parent` that are no more."""
    for path in (*parent.glob(f"{PREFIX}*"), *parent.glob(f".{PREFIX}*")):
        with suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def clear_own() -> None:
    for known in (_OWN, _WITHIN):
        for held in [held for held in known if held.pid == os.getpid()]:
            known.remove(held)
            _remove(held)


def leave(code: int) -> NoReturn:
    """Ends this process at once, with nothing left behind."""
    clear_own()
    os._exit(code)


def _made(parent: Path, prefix: str = PREFIX) -> _Held:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks: nobody clears there
            fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(lock)):
                return _Held(path, lock, os.getpid())
        os.close(lock)  # another process took it for one that was left


def _remove(held: _Held) -> None:
    for _ in range(TRIES):
        shutil.rmtree(held.path, ignore_errors=True)
        if not held.path.exists():
            break
        time.sleep(NAP)
    os.close(held.lock)


atexit.register(clear_own)
