"""How rows come out of files: JSON lines, JSON arrays, JSON objects around one, tables (CSV, TSV) and Parquet; plain, gzip or zstd.

Memory holds a row or a batch of rows, never a file. What a file is, its content says; only tables are known by their names.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from rolecast.data.files import kind_of, opened, seekable
from rolecast.data.jsonl import DEEP, fault, json_lines
from rolecast.errors import InputError
from rolecast.installed import needing
from rolecast.reading import distinct

PARQUET = b"PAR1"
WRAPPERS = ("data", "Data")  # the key of the rows, where a file is one object around them: SQuAD, TriviaQA
TABLES = (".csv", ".tsv")
CHUNK = 1 << 16  # characters read at a time
LONGEST = 1 << 28  # characters of one row: one that is longer than this was never closed
_SPACE = re.compile(r"\s*")
_CUT = ("Unterminated string", "Expecting", "Invalid \\", "Extra data")  # what a decoder says of a text that goes on behind the buffer


class Row(NamedTuple):
    """One raw row and where it stands in its file."""

    unit: Literal["line", "row", "file"]
    number: int
    value: Any


def read_rows(path: Path, columns: Sequence[str] = (), quoted: bool = True) -> Iterator[Row]:
    """Rows of a file. `columns`: names for a table that has no line of them; `quoted`: cells may stand in quotes."""
    head = _head(path)
    if head.startswith(PARQUET):
        return _parquet(path)
    if kind_of(path) in TABLES:
        return _table(path, _separator(head), columns, quoted)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return _array(path)
    if text[:1] not in (b"{", b""):
        if columns:
            return _table(path, "\t", columns, quoted)
        if not text[:1].isdigit():  # a number is a line of JSON, if none of ours
            raise fault(path, "neither JSON nor Parquet; a table's name ends in .csv or .tsv, a text's in .txt or .md")
    if text.startswith(b"{") and _wrapped(path):
        return _array(path)
    return (Row("line", number, value) for number, value in json_lines(path))


def _head(path: Path) -> bytes:
    if path.is_dir():
        raise fault(path, "a folder; name a file in it")
    try:
        with opened(path) as file:
            return file.read(4096)
    except FileNotFoundError:
        raise fault(path, "no such file; check the path") from None
    except (OSError, EOFError) as error:
        raise fault(path, f"cannot be read ({error}); check the path or fetch the file again") from None


class _Text:
    """A JSON text that is read as it is used: what was used is forgotten."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder(object_pairs_hook=distinct)
        self.text, self.at, self.ended = "", 0, False

    def peek(self) -> str:
        """The next character that is no space, "" at the end."""
        while True:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self._more()

    def take(self, character: str) -> bool:
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def value(self) -> Any:
        """The value that begins here. `ValueError`: none does."""
        self.peek()
        while True:
            try:
                value, end = self._json.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                near = error.pos > len(self.text) - 16 or error.msg.startswith("Unterminated")
                if self.ended or not near or not error.msg.startswith(_CUT) or len(self.text) - self.at > LONGEST:
                    raise ValueError(error.msg) from None
            else:
                if end < len(self.text) or self.ended:  # a number at the buffer's end may go on
                    self.at = end
                    return value
            self._more()

    def _more(self) -> None:
        """As much again as is waiting, so that a long row is not decoded once a chunk."""
        data = self._file.read(max(CHUNK, len(self.text) - self.at))
        self.text = self.text[self.at :] + self._decoder.decode(data, final=not data)
        self.at, self.ended = 0, not data


def _wrapped(path: Path) -> bool:
    """Whether the file is one object around its rows. Anything wrong with it is for its reader to say."""
    try:
        with opened(path) as file:
            return _enter(_Text(file))
    except (OSError, EOFError, ValueError, RecursionError, InputError):
        return False


def _enter(text: _Text) -> bool:
    """Goes to the first row of an array, or of the array inside an object."""
    if text.take("["):
        return True
    if not text.take("{"):
        return False
    while text.peek() == '"':
        key = text.value()
        if not text.take(":"):
            return False
        if key in WRAPPERS and text.take("["):
            return True
        text.value()
        if not text.take(","):
            return False
    return False


def _array(path: Path) -> Iterator[Row]:
    number = 0
    try:
        with opened(path) as file:
            text = _Text(file)
            _enter(text)
            while not text.take("]"):
                number += 1
                yield Row("row", number, _element(text, f"{path}, row {number}"))
                if not text.take(",") and text.peek() != "]":
                    raise fault(f"{path}, row {number + 1}", "not JSON (the array ends early); fetch the file again")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise fault(f"{path}, row {number}" if number else path, f"cannot be read ({error}); fetch the file again") from None


def _element(text: _Text, where: str) -> Any:
    try:
        return text.value()
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise fault(where, f"not JSON ({error}); fetch the file again") from None
    except RecursionError:
        raise fault(where, f"{DEEP}; mend or remove it") from None
    except InputError as error:
        raise fault(where, str(error)) from None


def _separator(head: bytes) -> str:
    """A tab, where the first line has one: some files of tabs are called .csv."""
    return "\t" if b"\t" in head.partition(b"\n")[0] else ","


def _table(path: Path, separator: str, columns: Sequence[str], quoted: bool) -> Iterator[Row]:
    """Rows as mappings of a column's name to a cell. A row with more or fewer cells is a fault: its columns are shifted."""
    csv.field_size_limit(LONGEST)
    number = 0
    try:
        with opened(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            cells = csv.reader(text, delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
            names = list(columns) or next(cells, [])
            if len(set(names)) < len(names):
                raise fault(path, "a column's name is there twice, or there is no line of names; name the layout with --format")
            for values in cells:
                if not values:
                    continue
                number += 1
                if len(values) != len(names):
                    raise fault(
                        f"{path}, row {number}", f"has {len(values)} cells and not {len(names)}; mend the row, or name another --format"
                    )
                yield Row("row", number, dict(zip(names, values, strict=True)))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise fault(f"{path}, row {number + 1}", f"cannot be read ({error}); fetch the file again") from None


def first_cells(path: Path) -> list[str]:
    """The first line of a table that may have no names; none of what is no table."""
    if kind_of(path) not in TABLES or (head := _head(path)).startswith(PARQUET):
        return []
    csv.field_size_limit(LONGEST)
    try:
        with opened(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            return next(csv.reader(text, delimiter=_separator(head)), [])
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise fault(path, f"cannot be read ({error}); fetch the file again") from None


def _parquet(path: Path) -> Iterator[Row]:
    with needing("convert"):
        import pyarrow
        import pyarrow.parquet
    number = 0
    try:
        with seekable(path) as plain, pyarrow.parquet.ParquetFile(plain) as file:
            for batch in file.iter_batches(batch_size=256):
                for value in batch.to_pylist():
                    number += 1
                    yield Row("row", number, value)
    except (pyarrow.ArrowException, OSError) as error:
        raise fault(f"{path}, row {number + 1}", f"not parquet ({error}); fetch the file again") from None
