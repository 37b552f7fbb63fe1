"""Layouts that trainers read: FlashRAG, Search-R1, verl, the development set, our own file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rolecast.data.formats.base import Aliases, Format, Item, Key, Layout, aliases, key_of
from rolecast.data.jsonl import fault
from rolecast.data.records import Filled, QuestionRow, iter_corpus
from rolecast.types import Gold, Passage, Question


class _FlashRag(Layout):
    id: Key = None
    question: Filled
    golden_answers: Aliases
    metadata: dict[str, Any] | None = None


def _flashrag(raw: Mapping[str, Any]) -> Item:
    """PopQA's property stands for the type, and rows of it that ask the same are one, as in its own layout. Hops are unknown, hence 0: the
    layout does not say."""
    row = _FlashRag.model_validate(raw)
    metadata = row.metadata or {}
    type, level = metadata.get("type") or metadata.get("prop"), metadata.get("level")
    question = Question(
        "",
        row.question,
        Gold(tuple(row.golden_answers)),
        type if isinstance(type, str) else "",
        level=level if isinstance(level, str) else "",
    )
    return Item(key_of(row.id), question, same=" ".join(row.question.split()) if metadata.keys() >= {"subj_id", "prop_id"} else "")


class _Extra(Layout):
    index: Key = None
    split: str | None = None


class _Target(Layout):
    target: Aliases


class _Truth(Layout):
    ground_truth: _Target


class _SearchR1(Layout):
    id: Key = None
    question: Filled
    data_source: str = ""
    reward_model: _Truth
    extra_info: _Extra | None = None


def _search_r1(raw: Mapping[str, Any]) -> Item:
    """Files mix data sets whose ids and indices collide, so the key leads with the source; the type is the source."""
    row = _SearchR1.model_validate(raw)
    own = row.id if row.id is not None else row.extra_info.index if row.extra_info else None
    gold = Gold(tuple(row.reward_model.ground_truth.target))
    question = Question("", row.question, gold, row.data_source, dataset=row.data_source)
    return Item(key_of(row.data_source, own) if own is not None else "", question, original_id=key_of(own))


class _VerlExtra(_Extra):
    question: Filled
    answer: Aliases


class _Verl(Layout):
    data_source: str = ""
    extra_info: _VerlExtra


def _verl(raw: Mapping[str, Any]) -> Item:
    """`ground_truth` holds one answer of several; all of them are in `extra_info.answer`, a string or a list."""
    row = _Verl.model_validate(raw)
    extra = row.extra_info
    key = "" if extra.index is None else key_of(row.data_source, extra.split, extra.index)
    question = Question("", extra.question, Gold(tuple(extra.answer)), row.data_source, dataset=row.data_source)
    return Item(key, question, original_id=key_of(extra.index))


def _truth(raw: Mapping[str, Any]) -> Any:
    model = raw.get("reward_model")
    return model.get("ground_truth") if isinstance(model, Mapping) else None


class _Multihop(Layout):
    id: Key = None
    question: Filled
    golden_answers: Aliases
    dataset: str = ""
    hops: int = 0
    type: str = ""
    evidence: str = ""
    supporting_passage_ids: list[Filled]


def _multihop(raw: Mapping[str, Any]) -> Item:
    """Only annotated passages are gold. Those that merely contain the answer ("answer_match") are not.

    The triples become no chain: no sentence is marked as the one that states them.
    """
    row = _Multihop.model_validate(raw)
    passages = tuple(row.supporting_passage_ids) if row.evidence == "gold" else ()
    gold = Gold(tuple(row.golden_answers), passages=passages)
    return Item(key_of(row.id), Question("", row.question, gold, row.type, row.hops, dataset=row.dataset))


def _multihop_corpus(path: Path) -> Iterable[Passage]:
    for name in ("corpus.jsonl.gz", "corpus.jsonl"):
        if (path.parent / name).is_file():
            return iter_corpus(path.parent / name)
    raise fault(path, "no corpus.jsonl.gz or corpus.jsonl beside it, which its passage ids refer to; put it there")


def _rolecast(raw: Mapping[str, Any]) -> Item:
    """Our own rows; the id may be absent."""
    answers = {"answers": aliases(raw["answers"])} if "answers" in raw else {}
    question = QuestionRow.model_validate({"id": "absent", **raw, **answers}).to_question()
    return Item(question.id if "id" in raw else "", question, original_id=question.original_id)


FLASHRAG = Format(
    "flashrag",
    lambda raw: "golden_answers" in raw and not raw.keys() & {"reward_model", "supporting_passage_ids"},
    _flashrag,
)
SEARCH_R1 = Format("search_r1", lambda raw: isinstance(_truth(raw), Mapping), _search_r1)
VERL = Format("verl", lambda raw: isinstance(_truth(raw), str), _verl)
MULTIHOP = Format("multihop", lambda raw: raw.keys() >= {"golden_answers", "supporting_passage_ids"}, _multihop, _multihop_corpus)
ROLECAST = Format("rolecast", lambda raw: raw.keys() >= {"question", "answers"} and raw.keys() <= set(QuestionRow.model_fields), _rolecast)
