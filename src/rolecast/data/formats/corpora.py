"""Corpora: ours, Search-R1's (`wiki-18`), DPR's table, BEIR, MS MARCO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, Field

from rolecast.data.formats.base import Format, Item, Key, Layout
from rolecast.data.records import CorpusRow, EmptyPassage, Filled
from rolecast.types import Passage


def _corpus(raw: Mapping[str, Any]) -> Item:
    """Ours, Search-R1's `{"id", "contents"}`, and the table of DPR, whose columns are named as our keys. A title may be missing."""
    try:
        passage = CorpusRow.model_validate(raw).to_passage()
    except EmptyPassage:
        return Item(str(raw["id"]), empty=1)
    return Item(passage.id, passages=(passage,))


class _Beir(Layout):
    id: Filled = Field(validation_alias="_id")
    title: str = ""
    text: str


def _beir(raw: Mapping[str, Any]) -> Item:
    """`corpus.jsonl` of a BEIR folder, as the reader of PyPI's `beir` (GenericDataLoader) takes it. Without titles its rows look like those of
    `queries.jsonl`, which have no answers and are not read."""
    row = _Beir.model_validate({**raw, "_id": _text(raw.get("_id"))})
    return _one(row.id, row.title, row.text)


class _MsMarco(Layout):
    id: Filled = Field(validation_alias=AliasChoices("id", "pid", "docid"))
    title: str = ""
    text: str = Field(validation_alias=AliasChoices("text", "passage", "body"))


def _ms_marco(raw: Mapping[str, Any]) -> Item:
    """`collection.tsv` (id and text), `msmarco-docs.tsv` (id, address, title, body), and version 2's JSON lines, as PyPI's `ir-datasets` reads
    them. Tables have no line of names, and quotes in them are text."""
    row = _MsMarco.model_validate(raw)
    return _one(row.id, row.title, row.text)


def _text(id: Key) -> Any:
    return str(id) if type(id) is int else id


def _one(id: str, title: str, text: str) -> Item:
    return Item(id, passages=(Passage(id, title, text),)) if text.strip() else Item(id, empty=1)


def _is_ms_marco(raw: Mapping[str, Any]) -> bool:
    """A table of two columns may be one of questions as well, so that must be said."""
    return raw.keys() >= {"pid", "passage"} or raw.keys() >= {"docid", "url", "title", "body"}


CORPUS = Format("corpus", lambda raw: "question" not in raw and ("contents" in raw or raw.keys() >= {"id", "title", "text"}), _corpus)
BEIR = Format("beir", lambda raw: raw.keys() >= {"_id", "title", "text"} and "question" not in raw, _beir)
MS_MARCO = Format(
    "msmarco", _is_ms_marco, _ms_marco, columns={2: ("id", "text"), 4: ("docid", "url", "title", "body")}, quoted=False,
    tabled=lambda raw: str(raw.get("url", "")).startswith("http"),
)  # fmt: skip
