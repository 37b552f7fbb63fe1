"""Short questions with their answers: NQ open and DPR's copies, PopQA, AmbigQA, Bamboogle, FRAMES, KILT, and plain rows of question and answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from rolecast.data.formats.base import Aliases, Format, Item, Key, Layout, key_of, listed
from rolecast.data.jsonl import RowError
from rolecast.data.records import Filled, QuestionRow, passage_of
from rolecast.types import Gold, Question

# Beside question and answer, a plain row may say what it is called and what it is like; with anything else it is some other layout's.
ABOUT = {"id", "_id", "qid", "question_id", "dataset", "data_source", "split", "type", "level", "difficulty", "hops", "category", "topic"}
Spelled = BeforeValidator(listed)


class _Plain(Layout):
    id: Key = Field(default=None, validation_alias=AliasChoices("id", "_id", "qid", "question_id"))
    question: Filled
    answer: Aliases = Field(validation_alias=AliasChoices("answer", "answers"))
    dataset: str = Field(default="", validation_alias=AliasChoices("dataset", "data_source"))
    type: str = Field(default="", validation_alias=AliasChoices("type", "category", "topic"))
    level: str = Field(default="", validation_alias=AliasChoices("level", "difficulty"))
    hops: int = 0


def _plain(raw: Mapping[str, Any]) -> Item:
    """NQ open's rows, and anyone's own: a question, its answer or answers, and no more than what they are called."""
    row = _Plain.model_validate(raw)
    question = Question("", row.question, Gold(tuple(row.answer)), row.type, row.hops, dataset=row.dataset, level=row.level)
    return Item(key_of(row.id), question)


def _is_plain(raw: Mapping[str, Any]) -> bool:
    answers = raw.keys() & {"answer", "answers"}
    ours = "answers" in answers and raw.keys() <= set(QuestionRow.model_fields)
    return "question" in raw and len(answers) == 1 and raw.keys() - {"question", *answers} <= ABOUT and not ours


class _DprCopy(Layout):
    question: Filled
    answer: Aliases


def _dpr_copy(raw: Mapping[str, Any]) -> Item:
    """DPR's `nq-test.qa.csv`: no line of names, a question and the Python list of its answers. Read as described in DPR's repository."""
    row = _DprCopy.model_validate(raw)
    return Item("", Question("", row.question, Gold(tuple(row.answer))))


def _is_dpr_copy(raw: Mapping[str, Any]) -> bool:
    return isinstance(listed(raw["answer"]), list)


class _Context(Layout):
    title: str = ""
    text: str = ""


class _Dpr(Layout):
    question: Filled
    answers: Aliases
    dataset: str = ""
    positive_ctxs: list[_Context]
    negative_ctxs: list[_Context] = Field(default=[])
    hard_negative_ctxs: list[_Context] = Field(default=[])


def _dpr(raw: Mapping[str, Any]) -> Item:
    """DPR's training files. What they call positive holds the answer and was retrieved, so it is a passage and no gold one."""
    row = _Dpr.model_validate(raw)
    contexts = [*row.positive_ctxs, *row.negative_ctxs, *row.hard_negative_ctxs]
    filled = [context for context in contexts if context.text.strip()]
    passages = tuple({(p := passage_of(c.title, c.text.strip())).id: p for c in filled}.values())
    question = Question("", row.question, Gold(tuple(row.answers)), dataset=row.dataset)
    return Item("", question, passages, len(contexts) - len(filled))


class _PopQA(Layout):
    id: Key = None
    question: Filled
    possible_answers: Aliases
    prop: str


def _popqa(raw: Mapping[str, Any]) -> Item:
    """One question may be asked of several entities of one name; nobody who is asked can tell them apart, so they are one, with the answers
    of all. The property stands for the type."""
    row = _PopQA.model_validate(raw)
    question = Question("", row.question, Gold(tuple(row.possible_answers)), row.prop)
    return Item(key_of(row.id), question, same=" ".join(row.question.split()))


class _Pair(Layout):
    answer: Annotated[list[Any], Spelled]


class _Annotation(Layout):
    """Of one annotator. The hub keeps each as a column, the original files as a list of them."""

    answer: Annotated[list[Any], Spelled] = Field(default=[])
    pairs: Annotated[Any, Spelled] = Field(default=[], validation_alias="qaPairs")

    def answers(self) -> list[str]:
        pairs = self.pairs if isinstance(self.pairs, list) else [self.pairs]
        return _flat([self.answer, *(_Pair.model_validate(pair).answer for pair in pairs)])


def _flat(value: Any) -> list[str]:
    """Every text in lists of lists, once. The hub nests answers once more than the original."""
    if isinstance(value, str):
        return [value] if value.strip() else []
    return list(dict.fromkeys(text for part in value for text in _flat(part))) if isinstance(value, list | tuple) else []


class _AmbigQA(Layout):
    id: Key = None
    question: Filled
    annotations: Annotated[Any, Spelled]


def _ambigqa(raw: Mapping[str, Any]) -> Item:
    """The question as it was asked; the answer to any of its readings is right, as where retrieval papers evaluate on it."""
    row = _AmbigQA.model_validate(raw)
    annotations = row.annotations if isinstance(row.annotations, list) else [row.annotations]
    answers = _flat([_Annotation.model_validate(annotation).answers() for annotation in annotations])
    if not answers:
        raise RowError("'annotations' has no answer; the test files have none, convert train or dev")
    readings = any("multipleQAs" in _flat(a.get("type")) for a in annotations)
    return Item(key_of(row.id), Question("", row.question, Gold(tuple(answers)), "ambiguous" if readings else "single"))


class _Bamboogle(Layout):
    question: Filled = Field(validation_alias="Question")
    answer: Aliases = Field(validation_alias="Answer")


def _bamboogle(raw: Mapping[str, Any]) -> Item:
    """All of its questions take two facts."""
    row = _Bamboogle.model_validate(raw)
    return Item("", Question("", row.question, Gold(tuple(row.answer)), "compositional", 2))


class _Frames(Layout):
    id: Key = Field(default=None, validation_alias=AliasChoices("", "Unnamed: 0", "id"))
    question: Filled = Field(validation_alias="Prompt")
    answer: Aliases = Field(validation_alias="Answer")
    reasoning_types: str = ""
    wiki_links: Annotated[list[str], Spelled] = Field(default=[])


def _frames(raw: Mapping[str, Any]) -> Item:
    """Pages are cited by address and not part of the file, so there are no gold passages; a hop is a page that is needed."""
    row = _Frames.model_validate(raw)
    question = Question("", row.question, Gold(tuple(row.answer)), row.reasoning_types, len(set(row.wiki_links)))
    return Item(key_of(row.id), question)


class _KiltOutput(Layout):
    answer: str | None = None
    provenance: list[dict[str, Any]] | None = None


class _Kilt(Layout):
    id: Key = None
    input: Filled
    output: Annotated[list[_KiltOutput], Spelled]


def _kilt(raw: Mapping[str, Any]) -> Item:
    """An output is an answer, where it comes from, or both. Pages are KILT's own knowledge source, which the file does not bring."""
    row = _Kilt.model_validate(raw)
    answers = tuple(dict.fromkeys(o.answer for o in row.output if o.answer and o.answer.strip()))
    if not answers:
        raise RowError("'output' has no answer; the test files have none, convert train or dev")
    return Item(key_of(row.id), Question("", row.input, Gold(answers)))


PLAIN = Format("qa", _is_plain, _plain)
DPR_COPY = Format("dpr_qa", lambda raw: False, _dpr_copy, columns={2: ("question", "answer")}, tabled=_is_dpr_copy)
DPR = Format("dpr", lambda raw: raw.keys() >= {"question", "answers", "positive_ctxs"}, _dpr)
POPQA = Format("popqa", lambda raw: raw.keys() >= {"question", "possible_answers", "prop"}, _popqa)
AMBIGQA = Format("ambigqa", lambda raw: raw.keys() >= {"question", "annotations"} and "long_answer_candidates" not in raw, _ambigqa)
BAMBOOGLE = Format("bamboogle", lambda raw: raw.keys() == {"Question", "Answer"}, _bamboogle)
FRAMES = Format("frames", lambda raw: raw.keys() >= {"Prompt", "Answer", "reasoning_types"}, _frames)
KILT = Format("kilt", lambda raw: raw.keys() >= {"input", "output"} and isinstance(listed(raw["output"]), list), _kilt)
