"""Layouts that bring their paragraphs: HotpotQA, 2WikiMultiHopQA and MuSiQue, as published and as their hub tables."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from rolecast.data.formats.base import ABSTAIN, UNANSWERABLE, Aliases, Format, Item, Key, Layout, key_of, listed, records
from rolecast.data.jsonl import RowError
from rolecast.data.records import Filled, passage_of
from rolecast.types import Gold, Hop, Passage, Question
from rolecast.world.grammar import forward_query, words

_DISAMBIGUATION = re.compile(r"\s*\([^()]*\)$")


def _table(*columns: str) -> Callable[[Any], Any]:
    """The hub stores a list of tuples as a mapping of columns, or spells it in JSON."""

    def rows(value: Any) -> Any:
        value = listed(value)
        if isinstance(value, Mapping) and all(isinstance(value.get(column), list) for column in columns):
            return list(zip(*(value[column] for column in columns), strict=True))
        return value

    return rows


Context = Annotated[list[tuple[str, list[str]]], BeforeValidator(_table("title", "sentences"))]
Facts = Annotated[list[tuple[str, int]], BeforeValidator(_table("title", "sent_id"))]


class _Hotpot(Layout):
    key: Key = Field(default=None, validation_alias=AliasChoices("_id", "id"))
    question: Filled
    answer: Aliases
    type: str = ""
    level: str = ""
    context: Context
    supporting_facts: Facts


class _TwoWiki(_Hotpot):
    evidences: Annotated[list[tuple[str, str, str]], BeforeValidator(_table("fact", "relation", "entity"))]


@dataclass(frozen=True, slots=True)
class _Paragraph:
    """A paragraph of one question. `sentences` keep their places, which supporting facts count."""

    title: str
    sentences: tuple[str, ...]

    @property
    def passage(self) -> Passage:
        text = " ".join(sentence for sentence in self.sentences if sentence)
        return passage_of(self.title, text)


def _paragraphs(row: _Hotpot) -> list[_Paragraph]:
    stripped = (_Paragraph(title, tuple(sentence.strip() for sentence in sentences)) for title, sentences in row.context)
    return [paragraph for paragraph in stripped if any(paragraph.sentences)]


def _supporting(row: _Hotpot, paragraphs: Sequence[_Paragraph]) -> list[tuple[_Paragraph, str]]:
    """Paragraph and sentence of every supporting fact, or nothing if a paragraph is not in the context (HotpotQA fullwiki).

    Some published sentence numbers lie beyond the paragraph's end; the paragraph is gold nevertheless. A title may be spelled in another way
    in one place than in the other (HTML entities, composed and decomposed letters): it is found, and the passage keeps its own.
    """
    found = []
    for title, number in row.supporting_facts:
        titled = [paragraph for paragraph in paragraphs if paragraph.title == title] or [
            paragraph for paragraph in paragraphs if _spelled(paragraph.title) == _spelled(title)
        ]
        if not titled:
            return []
        paragraph = next((p for p in titled if 0 <= number < len(p.sentences)), titled[0])
        found.append((paragraph, paragraph.sentences[number] if 0 <= number < len(paragraph.sentences) else ""))
    return found


def _spelled(title: str) -> str:
    return " ".join(unicodedata.normalize("NFC", html.unescape(title)).split())


def _item(row: _Hotpot, chain_of: Callable[[Sequence[tuple[_Paragraph, str]]], tuple[Hop, ...]]) -> Item:
    paragraphs = _paragraphs(row)
    supporting = _supporting(row, paragraphs)
    passages = tuple(dict.fromkeys(paragraph.passage.id for paragraph, _ in supporting))
    hops = len({title for title, _ in row.supporting_facts})
    gold = Gold(tuple(row.answer), chain_of(supporting), passages)
    question = Question("", row.question, gold, row.type, hops, level=row.level)
    return Item(key_of(row.key), question, tuple(p.passage for p in paragraphs), len(row.context) - len(paragraphs))


def _hotpotqa(raw: Mapping[str, Any]) -> Item:
    """One hop for each gold paragraph. No chain: the facts are sentences without subject, relation and object."""
    return _item(_Hotpot.model_validate(raw), lambda supporting: ())


def _two_wiki(raw: Mapping[str, Any]) -> Item:
    """One hop for each gold paragraph, which is one for each triple in all but a few comparisons."""
    row = _TwoWiki.model_validate(raw)
    return _item(row, lambda supporting: _chain(row.evidences, supporting))


def _chain(triples: Sequence[tuple[str, str, str]], supporting: Sequence[tuple[_Paragraph, str]]) -> tuple[Hop, ...]:
    """A hop for each triple, or no chain at all.

    A triple is stated by a supporting sentence that holds all words of its object, in the paragraph that is about its
    subject. Each triple needs a paragraph of its own, and no paragraph may be left over; else some hop would be guessed.
    """
    hops = []
    for subject, relation, object in triples:
        stating = next(((p, s) for p, s in supporting if _about(p.title, subject) and set(words(object)) <= set(words(s))), None)
        if stating is None or not words(object):
            return ()
        paragraph, sentence = stating
        hops.append(Hop(subject, relation, object, sentence, paragraph.passage.id, forward_query(relation, subject)))
    cited = {paragraph.passage.id for paragraph, _ in supporting}
    return tuple(hops) if len(hops) == len(cited) and {hop.passage for hop in hops} == cited else ()


def _about(title: str, subject: str) -> bool:
    """Whether a title names the subject, apart from "(1929 film)" and the like."""
    return words(subject) in (words(title), words(_DISAMBIGUATION.sub("", title)))


class _MusiquePart(Layout):
    paragraph_support_idx: int | None = None


class _MusiqueParagraph(Layout):
    idx: int
    title: str = ""
    paragraph_text: str


class _Musique(Layout):
    id: Key = None
    question: Filled
    answer: Aliases
    answer_aliases: Annotated[list[str], BeforeValidator(listed)] = Field(default_factory=list)
    answerable: bool = True
    paragraphs: Annotated[list[_MusiqueParagraph], BeforeValidator(records)]
    question_decomposition: Annotated[list[_MusiquePart], BeforeValidator(records)] = Field(min_length=1)


def _musique(raw: Mapping[str, Any]) -> Item:
    """Hops and gold passages in the order of the decomposition; the type is the graph's shape, which leads the id.

    An unanswerable row of MuSiQue-Full lacks the paragraph of a hop, and has the id of its answerable twin. Its answer is `unknown`, and
    stays so only over a corpus without its twin's paragraphs.

    No chain: the parts are questions, and no sentence is marked as the one that answers them.
    """
    row = _Musique.model_validate(raw)
    passages = {p.idx: passage_of(p.title, p.paragraph_text.strip()) for p in row.paragraphs if p.paragraph_text.strip()}
    gold = []
    for number, part in enumerate(row.question_decomposition, 1):
        cited = None if part.paragraph_support_idx is None else passages.get(part.paragraph_support_idx)
        if cited is not None:
            gold.append(cited.id)
        elif row.answerable or part.paragraph_support_idx is not None:
            raise RowError(f"hop {number} cites paragraph {part.paragraph_support_idx}, which the row lacks; fetch the file again")
    answers = tuple(dict.fromkeys([*row.answer, *(alias for alias in row.answer_aliases if alias.strip())]))
    shape = str(row.id).partition("__")[0] if "__" in str(row.id) else ""
    question = Question(
        "",
        row.question,
        Gold(answers if row.answerable else ABSTAIN, passages=tuple(dict.fromkeys(gold))),
        shape if row.answerable else UNANSWERABLE,
        len(row.question_decomposition),
    )
    key = key_of(row.id) if row.answerable else key_of(row.id, UNANSWERABLE)
    return Item(key, question, tuple(passages.values()), len(row.paragraphs) - len(passages), original_id=key_of(row.id))


HOTPOTQA = Format("hotpotqa", lambda raw: raw.keys() >= {"question", "context", "supporting_facts"} and "evidences" not in raw, _hotpotqa)
TWO_WIKI = Format("2wikimultihopqa", lambda raw: raw.keys() >= {"question", "context", "evidences"}, _two_wiki)
MUSIQUE = Format("musique", lambda raw: raw.keys() >= {"question", "paragraphs", "question_decomposition"}, _musique)
