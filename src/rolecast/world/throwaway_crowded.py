"""Throw-away worlds of the crowded kind: a small crowded world with one question, and a ranker of words over its passages.

It is large enough that results are as varied as an index's: with a few dozen entities the same objects come again and again, and
reading is so much harder than it need be that a small model does not learn it. Some results are in random order, as in the other
throw-away worlds: where the passage asked for always comes first, nothing is learned of reading either.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from rolecast.types import Passage, Question
from rolecast.world.crowded import SLOTS, draw_crowd, draw_entities, draw_question
from rolecast.world.grammar import DATED, LISTED, RELATIONS, YEARS, crowded_lexicon, lexicon, words
from rolecast.world.questions import Draft

ENTITIES = 200
SHUFFLED = 0.35  # share of results in random order
_ASKED = {*RELATIONS, *DATED.values(), *LISTED.values()}
_PLAIN = {word.lower() for word in (*lexicon(), *crowded_lexicon())} - {*_ASKED, *YEARS}


class ThrowawayCrowd:
    def __init__(self, rng: random.Random, kind: str, facts: int) -> None:
        self._rng = rng
        draft: Draft | None = None
        while draft is None:
            crowd = draw_crowd(draw_entities(ENTITIES, rng, set()), rng)
            tries = (draw_question(crowd, kind, facts, rng) for _ in range(ENTITIES))
            draft = next((found for found in tries if found is not None), None)
        self.crowd = crowd
        self.question: Question = draft.question("throwaway", crowd.text_of)
        self._ranker = _Ranker(crowd.texts)

    def passages(self, query: str, k: int) -> list[Passage]:
        """What the index of such a world would show for `query`, at most `k` passages."""
        shown = [self.crowd.texts[row] for row in self._ranker.best(query, k)]
        if self._rng.random() < SHUFFLED:
            self._rng.shuffle(shown)
        return [Passage(text, "", text) for text in shown]


def draw_crowded(rng: random.Random) -> ThrowawayCrowd:
    return ThrowawayCrowd(rng, *rng.choice(SLOTS))


class _Ranker:
    """BM25 over a handful of texts, with weights of words as in a large index, where a relation is in many more passages than a syllable."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(_content(text)) for text in texts]
        self._mean = sum(map(Counter.total, self._counts)) / len(texts)

    def best(self, query: str, k: int) -> list[int]:
        """Rows that share a word with the query, best first, ties in their order."""
        asked = _content(query)
        scores = {row: score for row, counts in enumerate(self._counts) if (score := self._score(counts, asked)) > 0}
        return sorted(scores, key=lambda row: -scores[row])[:k]

    def _score(self, counts: Counter[str], asked: Sequence[str]) -> float:
        norm = 1.5 * (0.25 + 0.75 * counts.total() / self._mean)
        return sum((1 if word in _ASKED else 2) * counts[word] / (counts[word] + norm) for word in asked if word in counts)


def _content(text: str) -> list[str]:
    return [word for word in words(text) if word not in _PLAIN]
