"""What a layout is, and how rows come out of JSONL, JSON arrays and parquet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict

from rolecast.data.records import DEEP, Answers, fault, json_lines, opened
from rolecast.errors import InputError
from rolecast.installed import needing
from rolecast.reading import distinct
from rolecast.types import Passage, Question

_PARQUET = b"PAR1"
_SPACE = re.compile(r"\s*")


class Row(NamedTuple):
    """One raw row and where it stands in its file."""

    unit: Literal["line", "row"]
    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class Item:
    """What a row says. `key` is the row's own id, "" without one; the question has no id yet."""

    key: str
    question: Question | None = None
    passages: tuple[Passage, ...] = ()
    empty: int = 0  # paragraphs that came without text and are left out


def _alone(path: Path) -> Iterable[Passage]:
    return ()


@dataclass(frozen=True, slots=True)
class Format:
    """One layout. `matches` looks at keys only; `parse` raises `RowError` or pydantic's `ValidationError`.

    `beside` gives the passages of a corpus that lies next to the questions.
    """

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    parse: Callable[[Mapping[str, Any]], Item]
    beside: Callable[[Path], Iterable[Passage]] = _alone


class Layout(BaseModel):
    """The keys of a public row that we read; the others are somebody else's."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _aliases(value: Any) -> Any:
    """One string is a list of one. A blank alias beside real ones is dropped: it would make the empty answer right."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return value
    return list(dict.fromkeys(alias for alias in value if not isinstance(alias, str) or alias.strip()))


Aliases = Annotated[Answers, BeforeValidator(_aliases)]
Key = str | int | None


def key_of(*parts: Key) -> str:
    """The row's key from the parts that it has."""
    return "/".join(str(part) for part in parts if part not in (None, ""))


def passage_id(title: str, text: str) -> str:
    """The same paragraph has one id in every question, split and data set; another text under its title has another."""
    return hashlib.blake2b(f"{title}\x1f{text}".encode(), digest_size=8).hexdigest()


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a parquet file, a JSON array or JSONL; told by the content."""
    head = _head(path)
    if head.startswith(_PARQUET):
        return _parquet(path)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
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


def _array(path: Path) -> Iterator[Row]:
    """Element by element: all parsed rows of a HotpotQA file at once would fill a laptop's memory."""
    try:
        with opened(path) as file:
            text = file.read().decode("utf-8-sig")
    except (OSError, EOFError, ValueError) as error:
        raise fault(path, f"cannot be read ({error}); fetch the file again") from None
    decoder = json.JSONDecoder(object_pairs_hook=distinct)
    at, number = _skip(text, text.index("[") + 1), 0
    while text[at : at + 1] != "]":
        number += 1
        try:
            value, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise fault(f"{path}, row {number}", f"not JSON ({error}); fetch the file again") from None
        except RecursionError:
            raise fault(f"{path}, row {number}", f"{DEEP}; mend or remove it") from None
        except InputError as error:
            raise fault(f"{path}, row {number}", str(error)) from None
        yield Row("row", number, value)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise fault(f"{path}, row {number + 1}", "not JSON (the array ends early); fetch the file again")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _parquet(path: Path) -> Iterator[Row]:
    with needing("convert"):
        import pyarrow
        import pyarrow.parquet
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for value in batch.to_pylist():
                    number += 1
                    yield Row("row", number, value)
    except (pyarrow.ArrowException, OSError) as error:
        raise fault(f"{path}, row {number + 1}", f"not parquet ({error}); fetch the file again") from None
