"""Which role failed first: of an episode that is not right, the first thing on the way to its answer that went wrong.

A gold passage that was never retrieved was not asked for, or its search missed it. Which of the two, a gold chain tells: a hop was asked for if
a query holds the words of its subject. What was retrieved and is not in the context that the answer was given from was dropped on the way,
by a filter or by a cut: a hop is in a context that holds its object, and without a chain the gold answer stands for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rolecast.rewards.evidence import contains
from rolecast.rewards.text import normalize
from rolecast.types import Hop, Observation, Thread, Trajectory

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


def first_fault(t: Trajectory, score: float | None) -> str:
    """One of `FAULTS`; "" of an episode that is right (`score` 1) or unscored."""
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
        return _not_retrieved(t, [hop for hop in stated if hop.passage in missing])
    return DROPPED if _dropped(t, stated) else ERRED


def _not_retrieved(t: Trajectory, missing: Sequence[Hop]) -> str:
    """By the first hop that is missing: those after it could not be asked for."""
    if not t.queries:
        return NEVER_ASKED
    if not missing:
        return NOT_FOUND
    return MISSED if any(_holds(query, missing[0].subject) for query in t.queries) else NEVER_ASKED


def _dropped(t: Trajectory, stated: Sequence[Hop]) -> bool:
    thread = answered_in(t)
    if thread is None:
        return False
    read = [turn.text for turn in thread.turns if isinstance(turn, Observation)]
    if stated:
        return any(not any(_has(text, hop.object) for text in read) for hop in stated)
    return contains(read, t.question) is False


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
