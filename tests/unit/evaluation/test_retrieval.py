"""What is said of a retriever: what the raw question finds, and what each gold query finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from scripted import EMPLOYER, MENTOR, RIVAL, TWO_HOPS, hop, passage

from rolecast.evaluation.retrieval import measure
from rolecast.retriever.index import LocalRetriever
from rolecast.types import Gold, Hop, Passage, Question

BORN = Question("qb", "Who is the rival of Brol Tan?", Gold(("Grel Pon",), (hop(RIVAL),), (RIVAL.sentence,)), "chain", 1)
MISSING = Question(
    "qm", "Who is the twin of Kel Dax?", Gold(("unknown",), (Hop("Kel Dax", "twin", "", "No.", "", "twin of Kel Dax"),)), "", 1
)


class Table(LocalRetriever):
    def __init__(self, found: dict[str, list[Passage]]) -> None:
        self.found = found

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self.found.get(query, [])[:k] for query in queries]


def test_shares_of_what_is_found() -> None:
    found = {
        TWO_HOPS.text: [passage(MENTOR), passage(RIVAL), passage(EMPLOYER)],
        BORN.text: [passage(RIVAL)],
        MENTOR.query: [passage(MENTOR)],
        RIVAL.query: [passage(MENTOR)],
    }
    asked = [TWO_HOPS, BORN, MISSING]
    numbers = asyncio.run(measure(Table(found), asked, 3))
    assert numbers == {"raw_question_all_gold": 1.0, "one_search": 2 / 3, "gold_sub_query": 1 / 3, "k": 3.0}
    numbers = asyncio.run(measure(Table(found), asked, 2))  # the employer comes third
    assert (numbers["raw_question_all_gold"], numbers["one_search"]) == (0.0, 1 / 3)
