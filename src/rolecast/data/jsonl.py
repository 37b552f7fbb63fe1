"""JSON, an object a line, plain, gzip or zstd: read and written without knowing what a row is.

What is wrong with a file is one `InputError` with file, line, reason and next step. A writer leaves a whole file or none.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from rolecast.data.files import opened
from rolecast.errors import InputError
from rolecast.reading import distinct
from rolecast.scratch import scratch_in

DEEP = "lists or objects are nested too deeply"
HALF_PAIR = "a text holds half of a surrogate pair; mend or leave out the row"


class RowError(ValueError):
    """What is wrong with a row and what to do about it. Who knows the file says where."""


def fault(where: object, reason: str) -> InputError:
    """One line, whatever the reason quotes."""
    return InputError(f"{where}: {' '.join(reason.split())}")


def json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Number and object of every line that is not blank."""
    number = 0
    try:
        with opened(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _object(line, f"{path}, line {number}")
    except FileNotFoundError:
        raise fault(path, "no such file; check the path") from None
    except IsADirectoryError:
        raise fault(path, "a folder; name a file in it") from None
    except (OSError, EOFError, zlib.error) as error:
        raise fault(f"{path}, line {number + 1}", f"cannot be read ({error}); check the path or fetch the file again") from None


def _object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=distinct)
    except ValueError as error:  # bad JSON or bad UTF-8
        raise fault(where, f"not JSON ({error}); write one JSON object a line") from None
    except RecursionError:
        raise fault(where, f"{DEEP}; mend or remove it") from None
    except InputError as error:
        raise fault(where, str(error)) from None
    if not isinstance(row, dict):
        raise fault(where, f"not an object but {type(row).__name__}; write one JSON object a line")
    if b"\\ud" in line.lower():  # JSON can spell half a surrogate pair, which no file or tokenizer takes
        try:
            encoded(row)
        except RowError as error:
            raise fault(where, str(error)) from None
    return row


def encoded(row: Mapping[str, Any]) -> bytes:
    """RowError for what no file or tokenizer takes."""
    try:
        return json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RowError(HALF_PAIR) from None


class JsonlWriter:
    """Rows go to a temporary name in the same folder; `path` appears when the block ends without an error.

    Without a row there is no file, and what stood at `path` stays. A name ending in .gz is compressed, with no time
    stamp, so that the same rows give the same bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._folder = ExitStack()  # beside it, until the end
        self._temporary = path
        self._raw: IO[bytes] | None = None
        self._out: IO[bytes] | None = None

    def __enter__(self) -> JsonlWriter:
        return self

    def write(self, row: Mapping[str, Any]) -> None:
        line = encoded(row) + b"\n"
        try:
            if self._out is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._temporary = self._folder.enter_context(scratch_in(self.path.parent)) / "rows"
                self._raw = self._out = self._temporary.open("xb")
                if self.path.suffix == ".gz":
                    self._out = cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", fileobj=self._raw, mtime=0))
            self._out.write(line)
        except OSError as error:
            raise self._unwritable(error) from None
        self.rows += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._raw is None or self._out is None:
            self._folder.close()
            return
        try:
            if self._out is not self._raw:
                self._out.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            self._raw.close()
            if error is None:
                os.replace(self._temporary, self.path)
        except OSError as cause:
            raise self._unwritable(cause) from None
        finally:
            self._raw.close()
            self._folder.close()

    def _unwritable(self, error: OSError) -> InputError:
        return fault(self.path, f"cannot be written ({error.strerror or error}); choose another place or make room")
