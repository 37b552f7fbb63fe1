"""Which role failed first: of an episode that is not right, the first thing on the way to its answer that went wrong.

A gold passage that was never retrieved was not asked for, or its search missed it. Which of the two, a gold chain tells: a hop was asked for if
a query holds the words of its subject. What was retrieved and is not in the context that the answer was given from was dropped on the way,
by a filter or by a cut: a hop is in a context that holds its object, and without a chain the gold answer stands for it.

Without a chain the supporting passages tell, where their texts are known: one was asked for if a query holds all words of its title, or if most
words of a query stand in it; and where the gold answer is silent (yes and no, comparisons), one is in a context that holds its title.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rolecast.rewards.evidence import contains
from rolecast.rewards.text import normalize
from rolecast.types import Hop, Observation, Passage, Thread, Trajectory

Texts = Mapping[str, Passage]
MOST = 2 / 3  # of a query's words
COMMON = frozenset({  # stand in most passages and say nothing of what is asked for
    "and", "are", "as", "at", "be", "by", "did", "do", "does", "for", "from", "had", "has", "have", "how", "in", "is", "it",
    "its", "of", "on", "or", "that", "to", "was", "were", "what", "when", "where", "which", "who", "whom", "whose", "why",
    "with",
})  # fmt: skip
NEVER_ASKED, MISSED, NOT_FOUND = "planner_never_asked", "retrieval_missed", "not_retrieved"
DROPPED, ERRED, UNTOLD = "filter_dropped", "answerer_erred", "no_gold_passages"
FAULTS: Mapping[str, str] = MappingProxyType(  # in the order of an episode's way
    {
        "error": "failed of something else than the team",
        "length": "ran out of room",
        "format": "broke its form",
        NEVER_ASKED: "planner never asked",
        MISSED: "retrieval missed",
        NOT_FOUND: "not retrieved; no chain tells whether it was asked for",
        DROPPED: "filter dropped",
        ERRED: "answerer erred",
        UNTOLD: "no gold passages to tell by",
    }
)


def first_fault(t: Trajectory, score: float | None, texts: Texts = MappingProxyType({})) -> str:
    """One of `FAULTS`; "" of an episode that is right (`score` 1) or unscored. `texts`: supporting passages by their ids (`silent_on`)."""
    if score is None or score >= 1:
        return ""
    if t.status != "ok":
        return t.status
    gold, got = t.question.gold, set(t.retrieved)
    stated = [hop for hop in gold.chain if hop.stated]
    passages = [hop.passage for hop in stated] or list(gold.passages)
    if not passages:
        return UNTOLD
    missing = [passage for passage in passages if passage not in got]
    if missing:
        known = [texts[passage] for passage in missing if passage in texts]
        return _not_retrieved(t, [hop for hop in stated if hop.passage in missing], known if len(known) == len(missing) else [])
    return DROPPED if _dropped(t, stated, [texts[passage] for passage in passages if passage in texts]) else ERRED


def silent_on(t: Trajectory, score: float | None) -> tuple[str, ...]:
    """Ids of the supporting passages whose texts would say more of what went wrong first: of an episode that is wrong, without a chain."""
    gold = t.question.gold
    wrong = score is not None and score < 1 and t.status == "ok" and bool(t.queries)
    return gold.passages if wrong and not any(hop.stated for hop in gold.chain) else ()


def _not_retrieved(t: Trajectory, missing: Sequence[Hop], passages: Sequence[Passage]) -> str:
    """By the first hop that is missing: those after it could not be asked for. Without a chain by the missing `passages`, which have no order:
    if none was asked for, the planner never asked."""
    if not t.queries:
        return NEVER_ASKED
    if missing:
        return MISSED if any(_holds(query, missing[0].subject) for query in t.queries) else NEVER_ASKED
    if not passages:
        return NOT_FOUND
    return MISSED if any(_asks_for(query, passage) for query in t.queries for passage in passages) else NEVER_ASKED


def _asks_for(query: str, passage: Passage) -> bool:
    """Whether a query holds all words of the title, or most of its words stand in the passage."""
    if (title := _words(passage.title)) and title <= _words(query):
        return True
    words = _words(query)
    return bool(words) and len(words & _words(f"{passage.title} {passage.text}")) >= MOST * len(words)


def _words(text: str) -> set[str]:
    return set(normalize(text).split()) - COMMON


def _dropped(t: Trajectory, stated: Sequence[Hop], passages: Sequence[Passage]) -> bool:
    thread = answered_in(t)
    if thread is None:
        return False
    read = [turn.text for turn in thread.turns if isinstance(turn, Observation)]
    if stated:
        return any(not any(_has(text, hop.object) for text in read) for hop in stated)
    if (told := contains(read, t.question)) is not None:
        return not told
    return any(not any(_has(text, passage.title) for text in read) for passage in passages if passage.title)


def answered_in(t: Trajectory) -> Thread | None:
    """The last thread whose last reply holds the answer; else the last that speaks."""
    spoken = [thread for thread in t.threads if thread.actions and not thread.probe]
    found = [thread for thread in spoken if t.answer is not None and t.answer in thread.actions[-1].text]
    return next(reversed(found or spoken), None)


def _holds(query: str, subject: str) -> bool:
    return set(normalize(subject).split()) <= set(normalize(query).split())


def _has(text: str, words: str) -> bool:
    return f" {normalize(words)} " in f" {normalize(text)} "


def counted(faults: Sequence[str]) -> dict[str, int]:
    """How many episodes failed first at what, in the order of the way; those that did not fail are left out."""
    counts = Counter(faults)
    return {fault: counts[fault] for fault in FAULTS if counts[fault]}
