"""Questions that ask the same: exactly, or nearly, by an exact join on shared words.

Exact: equal texts once case, punctuation and articles are gone. Near: the words and pairs of neighbouring words of both texts overlap by at
least a threshold (Jaccard), and they share a gold answer: "Who directed Get Low?" and "Who directed Get High?" ask two things.
Yes and no tell nothing apart, so questions with such an answer are near only where their words are the same ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil

from rolecast.rewards.text import ABSTENTION, SPECIAL, normalize
from rolecast.types import Question

NEAR = 0.8
_MUTE = SPECIAL | {ABSTENTION}


def shingles(text: str) -> frozenset[str]:
    """Its words and pairs of neighbouring words; what has only punctuation stands for itself."""
    words = normalize(text).split() or text.split()
    return frozenset([*words, *(" ".join(pair) for pair in pairwise(words))])


class Seen:
    """Questions so far, and which of them a new one repeats. `near` above 1 looks for exact ones alone.

    Sets that overlap by t share one of their first |x| − ⌈t·|x|⌉ + 1 elements in any fixed order (prefix filtering, Chaudhuri et al. 2006),
    so only questions that share one of these are compared; rare ones come first, so that they are few.
    """

    def __init__(self, near: float = NEAR, common: Mapping[str, int] | None = None) -> None:
        self._near, self._common = near, common or {}
        self._texts: dict[str, str] = {}  # of a normalised text, the id
        self._asked: list[tuple[str, frozenset[str], frozenset[str]]] = []  # id, shingles, answers
        self._by_shingle: dict[str, list[int]] = defaultdict(list)

    def repeats(self, question: Question) -> tuple[str, str] | None:
        """ "exact" or "near", and the id of the question that it repeats."""
        known = self._texts.get(_key(question.text))
        if known is not None:
            return "exact", known
        if self._near > 1:
            return None
        own, answers = shingles(question.text), _answers(question)
        for at in sorted({at for shingle in self._prefix(own) for at in self._by_shingle.get(shingle, ())}):
            id, other, golds = self._asked[at]
            if _overlap(own, other) >= self._near and _same_answer(answers, golds, own == other):
                return "near", id
        return None

    def add(self, question: Question) -> None:
        self._texts.setdefault(_key(question.text), question.id)
        if self._near > 1:
            return
        own = shingles(question.text)
        self._asked.append((question.id, own, _answers(question)))
        for shingle in self._prefix(own):
            self._by_shingle[shingle].append(len(self._asked) - 1)

    def _prefix(self, own: frozenset[str]) -> Sequence[str]:
        return sorted(own, key=lambda shingle: (self._common.get(shingle, 0), shingle))[: len(own) - ceil(self._near * len(own) - 1e-9) + 1]


def common(questions: Iterable[Question]) -> Counter[str]:
    """In how many questions each shingle is."""
    return Counter(shingle for question in questions for shingle in shingles(question.text))


def _key(text: str) -> str:
    return normalize(text) or " ".join(text.split())


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared) if shared else 0.0


def _answers(question: Question) -> frozenset[str]:
    return frozenset(normalize(answer) for answer in question.gold.answers)


def _same_answer(one: frozenset[str], other: frozenset[str], same_words: bool) -> bool:
    """Questions without answers, which have a rubric, are compared by their texts alone."""
    if not one or not other:
        return True
    return same_words if (one | other) & _MUTE else bool(one & other)
