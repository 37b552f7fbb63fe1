"""A disk that is full, read-only or closed to us: one error that names the place, whichever library was writing."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rolecast.errors import DiskError, RolecastError

ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENAMETOOLONG)
# safetensors and torch say so in errors of their own: "I/O error: No space left on device (os error 28)", "file write failed".
FOREIGN = ("(os error ", "file write failed", "PytorchStreamWriter failed", "unexpected pos ")


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """What fails in here for the disk's sake is a `DiskError` that names `path`, or the file where it is known."""
    try:
        yield
    except RolecastError:
        raise
    except Exception as error:
        if (fault := disk_fault(error, path)) is None:
            raise
        raise fault from error


def disk_fault(error: BaseException, path: Path | None = None) -> DiskError | None:
    """The error for people if `error`, or what it comes from, is the disk's; None otherwise."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and (step := _step(at.errno)):
            place = at.filename or path or "a file"
            return DiskError(f"{_shown(place)} cannot be written ({at.strerror}); {step}, then give the same command again")
        if path is not None and any(sign in str(at) for sign in FOREIGN):
            return DiskError(
                f"{path} cannot be written ({' '.join(str(at).split())[:200]}); make room there, then give the same command again"
            )
        at = at.__cause__ or at.__context__
    return None


def _step(number: int | None) -> str:
    if number in ROOM:
        return "make room there"
    if number in IN_THE_WAY:
        return "something else is in its place: move that away"
    return "make it writable, or name another place" if number in CLOSED else ""


def _shown(place: object) -> str:
    return place.decode(errors="replace") if isinstance(place, bytes) else str(place)
