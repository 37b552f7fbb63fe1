"""Whether evidence is sufficient to answer a question: by the words of a gold answer, or by the gold passages.

Both may be silent: a word match says nothing about an answer that any text may hold, and not every data set names its passages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rolecast.rewards.text import cover_exact_match, normalize
from rolecast.types import Question

WORDS_OF_ITS_OWN = frozenset({"yes", "no", "noanswer", ""})


def tells(question: Question) -> bool:
    """Whether an answer's words in a document say anything. They do not for yes and no, for answers without words, and for a
    comparison, whose answer the question names itself."""
    golds = question.gold.answers
    plain = all(normalize(gold) not in WORDS_OF_ITS_OWN for gold in golds)
    return bool(golds) and plain and "comparison" not in question.type and not cover_exact_match(question.text, golds)


def contains(texts: Iterable[str], question: Question) -> bool | None:
    """Whether a gold answer stands in one of the texts, on word boundaries, as answers are normalised. None where that says nothing."""
    if not tells(question):
        return None
    return any(cover_exact_match(text, question.gold.answers) for text in texts)


def holds_passages(ids: Collection[str], question: Question) -> bool | None:
    """Whether all gold passages are among `ids`. None where the question has none."""
    gold = question.gold.passages
    return set(gold) <= set(ids) if gold else None


def sufficient(texts: Iterable[str], ids: Collection[str], question: Question) -> bool | None:
    """As the words say; where they say nothing, as the gold passages do. None where nobody can tell."""
    return contains(texts, question) if tells(question) else holds_passages(ids, question)
