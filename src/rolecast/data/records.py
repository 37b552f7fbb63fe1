"""Our own files: questions and corpora as JSONL.

Readers check every row; a fault is one `InputError` with file, line, reason and next step. Writers write what readers take.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rolecast.data.jsonl import JsonlWriter, RowError, fault, json_lines
from rolecast.data.seen import SeenPassages
from rolecast.types import Gold, Hop, Passage, Question, RubricItem

QUESTION_SHAPE = 'a row is {"id": "q1", "question": "…", "answers": ["…"]}'
CORPUS_SHAPE = 'a row is {"id": "p1", "title": "…", "text": "…"} or {"id": "p1", "contents": "\\"Title\\"\\ntext"}'
log = logging.getLogger(__name__)


class EmptyPassage(RowError):
    """A passage without text, which whoever reads a corpus may leave out."""


def _filled(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("empty", "is empty")
    return text


def _with_gold(answers: list[str]) -> list[str]:
    if not answers:
        raise PydanticCustomError("no_gold", "question without gold")
    return answers


Filled = Annotated[str, AfterValidator(_filled)]
Id = Annotated[Filled, BeforeValidator(lambda id: str(id) if type(id) is int else id)]  # many files number their rows
Answers = Annotated[list[Filled], AfterValidator(_with_gold)]  # of data sets that have no rubrics


class HopRow(BaseModel):
    """A hop as it stands in a file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    subject: str
    relation: str
    object: str
    fact: str
    passage: str
    query: str


class RubricRow(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    text: Filled
    weight: float = 1.0
    dimension: str = ""

    @model_serializer(mode="wrap")
    def _sparing(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Rubrics without parts are written as they were before there were any: digests of data sets go by it."""
        return {key: value for key, value in whole(self).items() if value or key != "dimension"}


class QuestionRow(BaseModel):
    """A question as it stands in a file. Tuples inside `given` come back as lists."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Id
    question: Filled
    answers: list[Filled] = []
    type: str = ""
    hops: int = Field(default=0, ge=0)
    chain: list[HopRow] = []
    passages: list[Filled] = []
    given: dict[str, Any] = {}
    rubric: list[RubricRow] = []
    dataset: str = ""
    original_id: str = ""
    level: str = ""

    @model_validator(mode="after")
    def _with_gold(self) -> QuestionRow:
        if not self.answers and not self.rubric:
            given = "answers" in self.model_fields_set
            raise PydanticCustomError(
                "no_gold" if given else "no_answers", "question without gold" if given else "key 'answers' is missing"
            )
        return self

    @classmethod
    def of(cls, question: Question) -> QuestionRow:
        gold = question.gold
        return cls(
            id=question.id,
            question=question.text,
            answers=list(gold.answers),
            type=question.type,
            hops=question.hops,
            chain=[HopRow(**asdict(hop)) for hop in gold.chain],
            passages=list(gold.passages),
            given=dict(question.given),
            rubric=[RubricRow(text=item.text, weight=item.weight, dimension=item.dimension) for item in gold.rubric],
            dataset=question.dataset,
            original_id=question.original_id,
            level=question.level,
        )

    def to_question(self) -> Question:
        chain = tuple(Hop(**hop.model_dump()) for hop in self.chain)
        rubric = tuple(RubricItem(item.text, item.weight, item.dimension) for item in self.rubric)
        gold = Gold(tuple(self.answers), chain, tuple(self.passages), rubric)
        return Question(self.id, self.question, gold, self.type, self.hops, self.given, self.dataset, self.original_id, self.level)


class CorpusRow(BaseModel):
    """A passage as it stands in a file: ours, or Search-R1's, whose first line is the title. Other keys are left out."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    id: Id
    title: str | None = None
    text: str | None = None
    contents: str | None = None

    def to_passage(self) -> Passage:
        title, text = self.title, self.text
        if text is None and self.contents is not None:
            title, text = split_contents(self.contents)
        if text is None:
            raise RowError(f"key 'text' is missing; {CORPUS_SHAPE}")
        if not text.strip():
            raise EmptyPassage(f"passage {self.id!r} has an empty text; leave the row out or fill it")
        return Passage(self.id, title or "", text)


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of Search-R1's form `"Title"\\ntext`."""
    title, newline, text = contents.partition("\n")
    if not newline:
        raise RowError(f"'contents' has no title line; {CORPUS_SHAPE}")
    title = title.strip()
    quoted = len(title) > 1 and title[0] == title[-1] == '"'
    return (title[1:-1] if quoted else title), text


def passage_of(title: str, text: str) -> Passage:
    """The same paragraph has one id in every question, split and data set; another text under its title has another."""
    return Passage(hashlib.blake2b(f"{title}\x1f{text}".encode(), digest_size=8).hexdigest(), title, text)


def describe(error: ValidationError, step: str) -> str:
    """The first fault of a validation, and `step`, which puts it right."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "no_gold":
            return f"{first['msg']}; give it an answer or leave it out"
        case "no_answers":
            return f"{first['msg']}; {step}"
        case "missing":
            return f"key {key!r} is missing; {step}"
        case "extra_forbidden":
            return f"unknown key {key!r}; {step}"
        case "empty":
            return f"{key!r} is empty; {step}"
        case _:
            return f"{key!r}: {first['msg'][:1].lower()}{first['msg'][1:]}; {step}"


def read_questions(path: Path) -> list[Question]:
    """At least one question; ids are unique."""
    return list(iter_questions(path))


def iter_questions(path: Path) -> Iterator[Question]:
    """Questions one at a time; ids are unique, and there is at least one."""
    lines: dict[str, int] = {}
    for number, raw in json_lines(path):
        try:
            question = QuestionRow.model_validate(raw).to_question()
            _once(lines, question.id, number)
        except ValidationError as error:
            raise fault(f"{path}, line {number}", describe(error, QUESTION_SHAPE)) from None
        except RowError as error:
            raise fault(f"{path}, line {number}", str(error)) from None
        yield question
    if not lines:
        raise fault(path, f"no questions; {QUESTION_SHAPE}")


def iter_corpus(path: Path) -> Iterator[Passage]:
    """Passages one at a time, for corpora that do not fit into memory; ids are unique, and there is at least one. Rows without text, and rows
    that repeat a passage, are left out, and a warning says how many."""
    seen = SeenPassages()
    empty = repeated = 0
    for number, raw in json_lines(path):
        try:
            passage = CorpusRow.model_validate(raw).to_passage()
            new = seen.add(passage)
            if new is None:
                raise RowError(f"id {passage.id!r} stood for another text before; give every passage an id of its own")
        except EmptyPassage:
            empty += 1
            continue
        except ValidationError as error:
            raise fault(f"{path}, line {number}", describe(error, CORPUS_SHAPE)) from None
        except RowError as error:
            raise fault(f"{path}, line {number}", str(error)) from None
        if new:
            yield passage
        else:
            repeated += 1
    if not seen:
        raise fault(path, f"the corpus is empty; {CORPUS_SHAPE}")
    if empty or repeated:
        log.warning("%s: %d passages without text and %d that are there twice were left out", path, empty, repeated)


def read_corpus(path: Path) -> list[Passage]:
    return list(iter_corpus(path))


def _once(lines: dict[str, int], id: str, number: int) -> None:
    if id in lines:
        raise RowError(f"id {id!r} is already on line {lines[id]}; give every row its own")
    lines[id] = number


def question_row(question: Question) -> dict[str, Any]:
    """The row of a question that `read_questions` will take. What only some data sets say is left out where there is nothing to say."""
    try:
        row = QuestionRow.of(question).model_dump()
        return {key: value for key, value in row.items() if value or key not in ("rubric", "dataset", "original_id", "level")}
    except ValidationError as error:
        raise RowError(f"question {question.id!r}: {describe(error, 'mend what made it')}") from None


def passage_row(passage: Passage) -> dict[str, Any]:
    """The row of a passage that `read_corpus` will take."""
    row = {"id": passage.id, "title": passage.title, "text": passage.text}
    try:
        CorpusRow.model_validate(row).to_passage()
    except ValidationError as error:
        raise RowError(f"passage {passage.id!r}: {describe(error, 'mend what made it')}") from None
    return row


def write_questions(path: Path, questions: Iterable[Question]) -> None:
    lines: dict[str, int] = {}

    def rows() -> Iterator[Mapping[str, Any]]:
        for number, question in enumerate(questions, 1):
            row = question_row(question)
            _once(lines, question.id, number)
            yield row

    _write(path, rows(), "questions")


def write_corpus(path: Path, passages: Iterable[Passage]) -> None:
    """Holds some 25 bytes of a passage, not the passage."""
    seen = SeenPassages()

    def rows() -> Iterator[Mapping[str, Any]]:
        for passage in passages:
            row = passage_row(passage)
            if not seen.add(passage):
                raise RowError(f"id {passage.id!r} is there already; give every row its own")
            yield row

    _write(path, rows(), "passages")


def _write(path: Path, rows: Iterable[Mapping[str, Any]], what: str) -> None:
    """Writes nothing that the reader of the same file would refuse."""
    with JsonlWriter(path) as out:
        try:
            for row in rows:
                out.write(row)
        except RowError as error:
            raise fault(f"{path}, line {out.rows + 1}", str(error)) from None
    if not out.rows:
        raise fault(path, f"no {what} to write; an empty file would be refused later")
