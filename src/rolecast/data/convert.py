"""Public data sets to our files: `questions.jsonl` and, where the layout brings paragraphs, `corpus.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from rolecast.data.formats import FORMATS, Format, Item, Row, read_rows
from rolecast.data.records import HALF_PAIR, JsonlWriter, RowError, describe, fault, passage_row, question_row
from rolecast.errors import InputError
from rolecast.installed import needing
from rolecast.types import Passage, question_id

__all__ = ["FORMATS", "Converted", "convert", "convert_hub", "detect", "load_hub"]


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion wrote. `with_passages` and `with_chain` count questions that have gold of that kind."""

    format: str
    questions: int
    passages: int
    with_passages: int
    with_chain: int
    empty_paragraphs: int  # left out: a passage needs a text


def detect(path: Path) -> str:
    """The name of the format that the first row has."""
    row = next(read_rows(path), None)
    if row is None:
        raise fault(path, "no rows; fetch the file again")
    return _format_of(row, str(path)).name


def convert(source: Path, out: Path, format: str | None, dataset: str, split: str) -> Converted:
    """Writes into the folder `out`: all of it, or nothing on a fault. What else is in `out` stays."""
    return _convert(read_rows(source), str(source), source, out, format, dataset, split)


def convert_hub(hub: str, name: str | None, split: str, out: Path, format: str | None, dataset: str) -> Converted:
    """`convert` for a data set of the Hugging Face hub; `name` is its configuration."""
    rows = (Row("row", number, value) for number, value in enumerate(load_hub(hub, name, split), 1))
    return _convert(rows, _hub_name(hub, name, split), None, out, format, dataset, split)


def load_hub(dataset: str, name: str | None, split: str) -> Iterable[Mapping[str, Any]]:
    """The raw rows of a hub data set, downloaded or from the local cache."""
    with needing("convert"):
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    try:
        return cast(Iterable[Mapping[str, Any]], load_dataset(dataset, name, split=split))
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = f"cannot be loaded ({error}); check the names and the network, or download the file and convert it"
        raise fault(_hub_name(dataset, name, split), reason) from None


def _hub_name(dataset: str, name: str | None, split: str) -> str:
    return f"hub:{dataset}{f'/{name}' if name else ''}, split {split}"


def _format_of(row: Row, source: str) -> Format:
    names = ", ".join(FORMATS)
    if isinstance(row.value, Mapping):
        found = [format for format in FORMATS.values() if format.matches(row.value)]
        if len(found) == 1:
            return found[0]
        keys = ", ".join(row.value)
        raise fault(f"{source}, {row.unit} {row.number}", f"no format that we know has the keys {keys}; name one of {names}")
    raise fault(f"{source}, {row.unit} {row.number}", f"not an object but {type(row.value).__name__}; formats: {names}")


def _named(format: str) -> Format:
    if format not in FORMATS:
        raise InputError(f"format {format!r} is unknown; name one of {', '.join(FORMATS)}")
    return FORMATS[format]


def _convert(rows: Iterator[Row], source: str, path: Path | None, out: Path, format: str | None, dataset: str, split: str) -> Converted:
    layout = _named(format) if format is not None else None
    first = next(rows, None)
    if first is None:
        raise fault(source, "no rows; fetch the file again")
    layout = layout or _format_of(first, source)
    writer = _Output(out, dataset, split)
    with writer.questions, writer.corpus:  # the corpus gets its name first: questions never cite what is not there
        for passage in layout.beside(path) if path else ():
            writer.add_passage(passage)
        for row in chain([first], rows):
            try:
                writer.add(_parse(layout, row), row)
            except RowError as error:
                raise fault(f"{source}, {row.unit} {row.number}", str(error)) from None
            except UnicodeEncodeError:
                raise fault(f"{source}, {row.unit} {row.number}", HALF_PAIR) from None
    return Converted(layout.name, writer.questions.rows, writer.corpus.rows, writer.with_passages, writer.with_chain, writer.empty)


def _parse(layout: Format, row: Row) -> Item:
    if not isinstance(row.value, Mapping):
        raise RowError(f"not an object but {type(row.value).__name__}; mend or remove it")
    try:
        return layout.parse(row.value)
    except ValidationError as error:
        raise RowError(describe(error, f"mend the row, or name another format than {layout.name}")) from None


class _Output:
    """The two files and what is in them so far. Rows are not kept, so corpora larger than memory pass through."""

    def __init__(self, out: Path, dataset: str, split: str) -> None:
        self.questions = JsonlWriter(out / "questions.jsonl")
        self.corpus = JsonlWriter(out / "corpus.jsonl")
        self.with_passages = self.with_chain = self.empty = 0
        self._dataset, self._split = dataset, split
        self._passages: set[str] = set()
        self._rows: dict[str, int] = {}

    def add(self, item: Item, row: Row) -> None:
        key = item.key or str(row.number)
        if key in self._rows:
            raise RowError(f"id {key!r} is already on {row.unit} {self._rows[key]}; give every row its own")
        self._rows[key] = row.number
        self.empty += item.empty
        for passage in item.passages:
            self.add_passage(passage)
        if item.question is None:
            return
        gold = item.question.gold
        lost = [id for id in gold.passages if self._passages and id not in self._passages]
        if lost:
            raise RowError(f"gold passage {lost[0]!r} is not in the corpus; fetch the corpus that belongs to the questions")
        self.questions.write(question_row(replace(item.question, id=question_id(self._dataset, self._split, key))))
        self.with_passages += bool(gold.passages)
        self.with_chain += bool(gold.chain)

    def add_passage(self, passage: Passage) -> None:
        if passage.id not in self._passages:
            self._passages.add(passage.id)
            self.corpus.write(passage_row(passage))
