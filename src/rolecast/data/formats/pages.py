"""Layouts that bring the pages of their answers: NQ with pages, TriviaQA and SQuAD."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from rolecast.data.formats.base import ABSTAIN, UNANSWERABLE, Format, Item, Key, Layout, key_of, listed, records
from rolecast.data.jsonl import RowError
from rolecast.data.records import Filled, passage_of
from rolecast.data.texts import passages_of
from rolecast.types import Gold, Passage, Question

_TAG = re.compile(r"^<[^<>]*>$")


class _Span(Layout):
    """Tokens of a page, from `start_token` to before `end_token`; −1 is none."""

    start_token: int = -1
    end_token: int = -1
    top_level: bool = True


class _Annotation(Layout):
    long_answer: _Span
    short_answers: Annotated[list[_Span], BeforeValidator(records)] = Field(default=[])
    yes_no_answer: str | int = "NONE"

    @property
    def said(self) -> str:
        """Yes, no, or nothing: a word, or the hub's number of one."""
        return {"yes": "yes", "1": "yes", "no": "no", "0": "no"}.get(str(self.yes_no_answer).lower(), "")


class _NaturalQuestions(Layout):
    id: Key = Field(default=None, validation_alias=AliasChoices("example_id", "id"))
    annotations: Annotated[list[_Annotation], BeforeValidator(records)]
    long_answer_candidates: Annotated[list[_Span], BeforeValidator(records)]


def _page(raw: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Title and tokens, those of markup empty: of the simplified files, the original ones, and the hub's."""
    if isinstance(text := raw.get("document_text"), str):
        title = str(raw.get("document_title") or _titled(raw.get("document_url")))
        return title, ["" if _TAG.match(token) else token for token in text.split(" ")]
    tokens = raw.get("document_tokens")
    title = raw.get("document_title") or ""
    if isinstance(document := raw.get("document"), Mapping):
        tokens, title = records(document.get("tokens")), document.get("title") or ""
    if not isinstance(tokens, list) or not all(isinstance(token, Mapping) and "token" in token for token in tokens):
        raise RowError("no page: 'document_text', 'document_tokens' or 'document.tokens'; fetch the file again")
    return str(title), ["" if token.get("html_token", token.get("is_html")) else str(token["token"]) for token in tokens]


def _titled(url: Any) -> str:
    """The title in a Wikipedia address, which the simplified files have in place of one."""
    found = re.search(r"title=([^&]+)", url) if isinstance(url, str) else None
    return found[1].replace("_", " ") if found else ""


def _natural_questions(raw: Mapping[str, Any]) -> Item:
    """A passage is a top-level candidate for a long answer, and gold where an annotator chose it. Rows without a short answer, whose only
    answer is a paragraph or none, are left out. Read as described by google-research-datasets/natural-questions and TFDS's natural_questions."""
    row = _NaturalQuestions.model_validate(raw)
    text = raw["question_text"] if "question_text" in raw else (raw.get("question") or {}).get("text", "")
    title, tokens = _page(raw)
    answers: list[str] = []
    chosen: list[_Span] = []
    for annotation in row.annotations:
        said = [_said(tokens, span) for span in annotation.short_answers]
        if found := [answer for answer in [*said, annotation.said] if answer]:
            answers += found
            chosen.append(annotation.long_answer)
    if not answers:
        return Item(key_of(row.id), left_out="rows without a short answer")
    candidates = [span for span in row.long_answer_candidates if span.top_level]
    texts = {(span.start_token, span.end_token): _said(tokens, span) for span in [*candidates, *chosen]}
    passages = {ends: passage_of(title, said) for ends, said in texts.items() if said}
    gold = tuple(dict.fromkeys(passages[ends].id for ends in _ends(chosen) if ends in passages))
    question = Question("", str(text), Gold(tuple(dict.fromkeys(answers)), passages=gold), hops=1)
    return Item(key_of(row.id), question, tuple(passages.values()), sum(not said for said in texts.values()))


def _said(tokens: Sequence[str], span: _Span) -> str:
    return " ".join(token for token in tokens[max(span.start_token, 0) : max(span.end_token, 0)] if token)


def _ends(spans: Iterable[_Span]) -> list[tuple[int, int]]:
    return [(span.start_token, span.end_token) for span in spans]


class _TriviaAnswer(Layout):
    value: Filled = Field(validation_alias=AliasChoices("value", "Value"))
    aliases: list[str] = Field(default=[], validation_alias=AliasChoices("aliases", "Aliases"))


class _TriviaPage(Layout):
    title: str = Field(default="", validation_alias=AliasChoices("title", "Title"))
    wiki_context: str = ""


class _Trivia(Layout):
    id: Key = Field(default=None, validation_alias=AliasChoices("question_id", "QuestionId"))
    question: Filled = Field(validation_alias=AliasChoices("question", "Question"))
    answer: Annotated[_TriviaAnswer, BeforeValidator(listed)] = Field(validation_alias=AliasChoices("answer", "Answer"))
    entity_pages: Annotated[list[_TriviaPage], BeforeValidator(records)] = Field(
        default=[], validation_alias=AliasChoices("entity_pages", "EntityPages")
    )


def _trivia(raw: Mapping[str, Any]) -> Item:
    """Pages, where the row brings their text, are passages of some hundred words. None is gold: the answer may be on them, nobody says where."""
    row = _Trivia.model_validate(raw)
    answers = dict.fromkeys([row.answer.value, *(alias for alias in row.answer.aliases if alias.strip())])
    passages = [p for page in row.entity_pages for p in passages_of(page.title, page.wiki_context)]
    return Item(key_of(row.id), Question("", row.question, Gold(tuple(answers))), tuple({p.id: p for p in passages}.values()))


def _is_trivia(raw: Mapping[str, Any]) -> bool:
    return raw.keys() >= {"question", "question_id", "question_source", "answer"} or raw.keys() >= {
        "Question",
        "QuestionId",
        "QuestionSource",
    }


class _SquadAnswer(Layout):
    text: str


class _Squad(Layout):
    id: Key = None
    title: str = ""
    context: str
    question: Filled
    answers: Annotated[list[_SquadAnswer], BeforeValidator(records)]


def _squad(raw: Mapping[str, Any]) -> Item:
    """A question without answers, of SQuAD 2, is unanswerable: its paragraph says nothing of it. Read as described by TFDS's squad."""
    if isinstance(answers := listed(raw.get("answers")), Mapping):  # the hub's columns, which are empty where nothing answers
        raw = {**raw, "answers": [{"text": text} for text in answers.get("text", [])]}
    row = _Squad.model_validate(raw)
    paragraph: tuple[Passage, ...] = (passage_of(row.title, row.context.strip()),) if row.context.strip() else ()
    answers = tuple(dict.fromkeys(answer.text for answer in row.answers if answer.text.strip()))
    gold = Gold(answers or ABSTAIN, passages=tuple(p.id for p in paragraph) if answers else ())
    question = Question("", row.question, gold, "" if answers else UNANSWERABLE, 1)
    return Item(key_of(row.id), question, paragraph, 1 - len(paragraph))


def _questions_of(article: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """The original files have an article a row, with paragraphs, with questions; the hub has a question a row."""
    if "paragraphs" not in article:
        yield article
        return
    for paragraph in article["paragraphs"]:
        for asked in paragraph.get("qas", ()) if isinstance(paragraph, Mapping) else ():
            yield {"title": article.get("title") or "", "context": paragraph.get("context"), **asked}


def _is_squad(raw: Mapping[str, Any]) -> bool:
    paragraphs = raw.get("paragraphs")
    if isinstance(paragraphs, list):
        return bool(paragraphs) and all(isinstance(paragraph, Mapping) and "qas" in paragraph for paragraph in paragraphs)
    return raw.keys() >= {"question", "context", "answers"}


NATURAL_QUESTIONS = Format("nq_pages", lambda raw: raw.keys() >= {"annotations", "long_answer_candidates"}, _natural_questions)
TRIVIAQA = Format("triviaqa", _is_trivia, _trivia)
SQUAD = Format("squad", _is_squad, _squad, each=_questions_of)
