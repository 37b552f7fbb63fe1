"""Files as they are downloaded: plain, gzip or zstd, told by their first bytes, since downloads lose their suffix."""

from __future__ import annotations

import gzip
import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from rolecast.installed import needing
from rolecast.scratch import scratch

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
COMPRESSED = (".gz", ".zst", ".zstd")


def opened(path: Path) -> IO[bytes]:
    """What a file holds, unpacked as it is read."""
    magic = magic_of(path)
    if magic.startswith(GZIP):
        return cast(IO[bytes], gzip.open(path, "rb"))
    if magic == ZSTD:
        with needing("convert"):
            import pyarrow
        return cast(IO[bytes], io.BufferedReader(pyarrow.CompressedInputStream(str(path), "zstd")))
    return path.open("rb")


def magic_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def kind_of(path: Path) -> str:
    """The suffix under that of a compression: ".csv" of `a.csv.gz`."""
    name = Path(path.name.lower())
    return name.with_suffix("").suffix if name.suffix in COMPRESSED else name.suffix


@contextmanager
def seekable(path: Path) -> Iterator[Path]:
    """A file that can be read from its end, as Parquet is: a compressed one is unpacked beside for as long as it is read."""
    magic = magic_of(path)
    if not (magic.startswith(GZIP) or magic == ZSTD):
        yield path
        return
    with scratch("unpacked") as folder:
        with opened(path) as packed, (folder / "copy").open("wb") as copy:
            shutil.copyfileobj(packed, copy, 1 << 20)
        yield folder / "copy"
