"""What a layout is."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from rolecast.data.records import Answers
from rolecast.rewards.text import ABSTENTION
from rolecast.types import Passage, Question

UNANSWERABLE = "unanswerable"  # the type of a question that the corpus does not answer: its answer is "unknown"


@dataclass(frozen=True, slots=True)
class Item:
    """What a row says. `key` is the row's own id, "" without one; the question has no id yet.

    `same`: rows with one text here are one question, with the answers of all. `left_out`: why the row gives no question. `original_id`: the
    row's own id where the key is more than that.
    """

    key: str
    question: Question | None = None
    passages: tuple[Passage, ...] = ()
    empty: int = 0  # paragraphs that came without text and are left out
    same: str = ""
    left_out: str = ""
    original_id: str = ""


Parse = Callable[[Mapping[str, Any]], Item]


def _alone(path: Path) -> Iterable[Passage]:
    return ()


def _never(raw: Mapping[str, Any]) -> bool:
    return False


def _itself(raw: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (raw,)


@dataclass(frozen=True, slots=True)
class Format:
    """One layout. `claims`: whether a row has what only this layout has; it looks at keys, and at a value only where its form is what tells.
    `parse` raises `RowError` or pydantic's `ValidationError`.

    `beside` gives the passages of a corpus that lies next to the questions; `with_file` makes the parser of rows that need another file;
    `each` takes rows apart that hold several; `columns` are those of a table without a line of names, by their number, and `tabled` is what
    `claims` is, of the first line of one.
    """

    name: str
    claims: Callable[[Mapping[str, Any]], bool]
    parse: Parse
    beside: Callable[[Path], Iterable[Passage]] = _alone
    with_file: Callable[[Path], Parse] | None = None
    each: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]] = _itself
    columns: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    tabled: Callable[[Mapping[str, Any]], bool] = _never
    quoted: bool = True  # whether the cells of its tables may stand in quotes


class Layout(BaseModel):
    """The keys of a public row that we read; the others are somebody else's. A key that is null is absent: tables have every column in every
    row."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, row: Any) -> Any:
        return {key: value for key, value in row.items() if value is not None} if isinstance(row, Mapping) else row


def listed(value: Any) -> Any:
    """The list or object that a text spells in JSON or, as pandas writes it, in Python; any other value as it is."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return found if isinstance(found, list | dict) else value
    return value


def records(value: Any) -> Any:
    """A list of objects that the hub stores as an object of columns, or spells in JSON."""
    value = listed(value)
    if isinstance(value, Mapping) and value and all(isinstance(column, list) for column in value.values()):
        return [dict(zip(value, cells, strict=True)) for cells in zip(*value.values(), strict=True)]
    return value


def aliases(value: Any) -> Any:
    """One string is a list of one, unless it spells a list. A blank alias beside real ones is dropped: it would make the empty answer right."""
    spelled = listed(value)
    if isinstance(spelled, list) and spelled is not value:
        value = [str(alias) if isinstance(alias, int | float) else alias for alias in spelled]
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    return list(dict.fromkeys(alias for alias in value if not isinstance(alias, str) or alias.strip()))


Aliases = Annotated[Answers, BeforeValidator(aliases)]
Key = str | int | None


def key_of(*parts: Key) -> str:
    """The row's key from the parts that it has."""
    return "/".join(str(part) for part in parts if part not in (None, ""))


ABSTAIN = (ABSTENTION,)  # the answers of a question that the corpus does not answer
