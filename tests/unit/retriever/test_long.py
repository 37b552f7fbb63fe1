"""Passages of one length: filled with others of the corpus, the same each time, and the ranking untouched."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted import TableRetriever

from rolecast.retriever.long import LongPassages
from rolecast.types import Passage

CORPUS = [Passage(f"p{n}", f"title {n}", f"word{n} and more{n}") for n in range(10)]


def of(tokens: int, found: list[Passage]) -> LongPassages:
    return LongPassages(TableRetriever(found), CORPUS, tokens, lambda text: len(text.split()))  # type: ignore[arg-type]


def search(retriever: Any) -> list[Passage]:
    [found] = asyncio.run(retriever.search(["q"], 5))
    return list(found)


def test_a_passage_is_filled_from_the_other_half_of_the_corpus() -> None:
    scored = [Passage("p1", "title 1", "word1 and more1", 0.5), Passage("p9", "title 9", "word9 and more9", 0.25)]
    first, second = search(of(9, scored))
    assert first == Passage("p1", "title 1", "word1 and more1 word6 and more6 word7 and more7", 0.5)
    assert second.text == "word9 and more9 word4 and more4 word5 and more5"
    assert search(of(11, scored))[0].text == first.text  # a fourth would be too long


def test_what_is_long_enough_stays_and_no_text_is_cut() -> None:
    long = [Passage("p2", "t", "a b c d e f g h")]
    assert search(of(3, long)) == long
    assert len(search(of(10**6, long))[0].text.split()) == 8 + 3 * len(CORPUS)  # until the corpus ends
