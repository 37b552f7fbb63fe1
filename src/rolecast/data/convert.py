"""Public data sets to our files: `questions.jsonl` and, where the layout brings paragraphs, `corpus.jsonl`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from rolecast.data.formats import FORMATS, TEXTS, Format, Item, Parse, Row, first_cells, read_rows
from rolecast.data.formats.base import UNANSWERABLE
from rolecast.data.jsonl import HALF_PAIR, JsonlWriter, RowError, fault
from rolecast.data.records import describe, passage_row, question_row
from rolecast.data.seen import SeenPassages
from rolecast.data.texts import is_text, read_texts
from rolecast.errors import InputError
from rolecast.installed import needing
from rolecast.types import Passage, Question, question_id

__all__ = ["FORMATS", "Converted", "convert", "convert_hub", "detect", "load_hub"]


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion wrote, and what it left out. `with_passages` and `with_chain` count questions that have gold of that kind; `twins`
    unanswerable questions whose answerable twin, with the passage that they lack, is in the same corpus; `left_out` rows by the reason."""

    format: str
    questions: int
    passages: int
    with_passages: int
    with_chain: int
    empty_paragraphs: int  # left out: a passage needs a text
    duplicates: int = 0  # passages that were there before, in a file that is a corpus
    unified: int = 0  # rows that asked what another one had asked, and gave it their answers
    unanswerable: int = 0
    twins: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)


def detect(path: Path) -> str:
    """The name of the format that the first row has."""
    if path.is_dir() or is_text(path):
        return TEXTS
    layout = _tabled(path)
    if layout is None:
        row = next(read_rows(path), None)
        if row is None:
            raise fault(path, "no rows; fetch the file again")
        layout = _format_of(row, str(path))
    return layout.name


def convert(source: Path, out: Path, format: str | None, dataset: str, split: str) -> Converted:
    """Writes into the folder `out`: all of it, or nothing on a fault. What else is in `out` stays."""
    if (detect(source) if format is None and source.exists() else format) == TEXTS:
        return _convert_texts(source, out)
    layout = _named(format) if format is not None else _tabled(source)
    rows = read_rows(source, _columns(layout, source), layout.quoted) if layout is not None else read_rows(source)
    return _convert(rows, str(source), source, out, layout, dataset, split)


def _tabled(path: Path) -> Format | None:
    """The layout that the first line of a table without names has."""
    cells = first_cells(path)
    tables = [(layout, layout.columns[len(cells)]) for layout in FORMATS.values() if len(cells) in layout.columns]
    return next((layout for layout, names in tables if layout.tabled(dict(zip(names, cells, strict=True)))), None)


def _columns(layout: Format, source: Path) -> tuple[str, ...]:
    """Names for a table's columns, where this layout's tables have no line of them."""
    cells = first_cells(source) if layout.columns else []
    return layout.columns.get(len(cells), ()) if not set(cells) & {name for names in layout.columns.values() for name in names} else ()


def convert_hub(hub: str, name: str | None, split: str, out: Path, format: str | None, dataset: str) -> Converted:
    """`convert` for a data set of the Hugging Face hub; `name` is its configuration."""
    rows = (Row("row", number, value) for number, value in enumerate(load_hub(hub, name, split), 1))
    return _convert(rows, _hub_name(hub, name, split), None, out, _named(format) if format is not None else None, dataset, split)


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
    where, names = f"{source}, {row.unit} {row.number}", ", ".join((*FORMATS, TEXTS))
    if not isinstance(row.value, Mapping):
        raise fault(where, f"not an object but {type(row.value).__name__}; formats: {names}")
    found = [format for format in FORMATS.values() if format.claims(row.value)]
    if len(found) == 1:
        return found[0]
    if found:
        raise fault(where, f"may be {' or '.join(format.name for format in found)}; say which with --format")
    keys = ", ".join(row.value)
    raise fault(where, f"no layout that we know is told by the keys {keys}; if it is one of these, name it with --format: {names}")


def _named(format: str) -> Format:
    if format not in FORMATS:
        raise InputError(f"format {format!r} is unknown; name one of {', '.join((*FORMATS, TEXTS))}")
    return FORMATS[format]


def _convert(rows: Iterator[Row], source: str, path: Path | None, out: Path, layout: Format | None, dataset: str, split: str) -> Converted:
    first = next(rows, None)
    if first is None:
        raise fault(source, "no rows; fetch the file again")
    layout = layout or _format_of(first, source)
    parse = layout.with_file(path) if layout.with_file and path else layout.parse
    writer = _Output(out, dataset, split)
    with writer.questions, writer.corpus:  # the corpus gets its name first: questions never cite what is not there
        for passage in layout.beside(path) if path else ():
            writer.add_passage(passage)
        for row in chain([first], rows):
            try:
                for number, item in enumerate(_parse(layout, parse, row)):
                    writer.add(item, row, number)
            except RowError as error:
                raise fault(f"{source}, {row.unit} {row.number}", str(error)) from None
            except UnicodeEncodeError:
                raise fault(f"{source}, {row.unit} {row.number}", HALF_PAIR) from None
        writer.end()
    if not writer.questions.rows and not writer.corpus.rows:
        raise fault(source, f"nothing to write: {_reasons(writer)}; name another file")
    return writer.told(layout.name)


def _reasons(writer: _Output) -> str:
    empty = {"passages without text": writer.empty} if writer.empty else {}
    return ", ".join(f"{count} {reason}" for reason, count in {**empty, **writer.left_out}.items()) or "its rows hold no question"


def _convert_texts(source: Path, out: Path) -> Converted:
    """A folder of plain text and Markdown, or one such file, to a corpus."""
    writer = _Output(out, "", "")
    with writer.questions, writer.corpus:
        for file, passages in read_texts(source):
            writer.empty += not passages
            try:
                for passage in passages:
                    writer.add_passage(passage, once=True)
            except RowError as error:
                raise fault(file, str(error)) from None
    if not writer.corpus.rows:
        raise fault(source, "no text in it; name another file or folder")
    return writer.told(TEXTS)


def _parse(layout: Format, parse: Parse, row: Row) -> Iterator[Item]:
    if not isinstance(row.value, Mapping):
        raise RowError(f"not an object but {type(row.value).__name__}; mend or remove it")
    try:
        for raw in layout.each(row.value):
            yield parse(raw)
    except ValidationError as error:
        raise RowError(describe(error, f"mend the row, or name another format than {layout.name}")) from None


class _Output:
    """The two files and what is in them so far. Rows are not kept, so corpora larger than memory pass through; questions are kept only of
    layouts that unite rows."""

    def __init__(self, out: Path, dataset: str, split: str) -> None:
        self.questions = JsonlWriter(out / "questions.jsonl")
        self.corpus = JsonlWriter(out / "corpus.jsonl")
        self.with_passages = self.with_chain = self.empty = self.duplicates = self.unified = self.unanswerable = self.twins = 0
        self.left_out: Counter[str] = Counter()
        self._dataset, self._split = dataset, split
        self._passages = SeenPassages()
        self._rows: dict[str, int] = {}
        self._held: dict[str, Question] = {}

    def add(self, item: Item, row: Row, number: int = 0) -> None:
        """`number`: of an item in its row."""
        if item.question is None and not item.left_out:
            self.empty += item.empty
            for passage in item.passages:
                self.add_passage(passage, once=True)
            return
        key = item.key or (f"{row.number}.{number}" if number else str(row.number))
        if key in self._rows:
            raise RowError(f"id {key!r} is already on {row.unit} {self._rows[key]}; give every row its own")
        self._rows[key] = row.number
        self.empty += item.empty
        for passage in item.passages:
            self.add_passage(passage)
        if item.question is None:
            self.left_out[item.left_out] += 1
            return
        gold = item.question.gold
        lost = [id for id in gold.passages if self._passages and id not in self._passages]
        if lost:
            raise RowError(f"gold passage {lost[0]!r} is not in the corpus; fetch the corpus that belongs to the questions")
        asked = item.question
        named = replace(
            asked,
            id=question_id(self._dataset, self._split, key),
            dataset=asked.dataset or self._dataset,
            original_id=item.original_id or item.key,
        )
        if not item.same:
            self._write(named)
        elif (known := self._held.get(item.same)) is None:
            self._held[item.same] = named
        else:
            self.unified += 1
            answers = tuple(dict.fromkeys((*known.gold.answers, *gold.answers)))
            self._held[item.same] = replace(known, gold=replace(known.gold, answers=answers))

    def end(self) -> None:
        for question in self._held.values():
            self._write(question)
        suffix = f"/{UNANSWERABLE}"
        self.twins = sum(key.endswith(suffix) and key.removesuffix(suffix) in self._rows for key in self._rows)

    def _write(self, question: Question) -> None:
        self.questions.write(question_row(question))
        self.with_passages += bool(question.gold.passages)
        self.with_chain += bool(question.gold.chain)
        self.unanswerable += question.type == UNANSWERABLE

    def add_passage(self, passage: Passage, once: bool = False) -> None:
        """`once`: a corpus gives each passage once, so one that is there already is counted."""
        new = self._passages.add(passage)
        if new is None:
            raise RowError(f"passage {passage.id!r} was another text before; give every passage an id of its own")
        if new:
            self.corpus.write(passage_row(passage))
        else:
            self.duplicates += once

    def told(self, format: str) -> Converted:
        return Converted(
            format, self.questions.rows, self.corpus.rows, self.with_passages, self.with_chain, self.empty, self.duplicates, self.unified,
            self.unanswerable, self.twins, dict(self.left_out),
        )  # fmt: skip
