"""CoDA's rewards as pure functions of what was said (3.3.4, eq. 4 to 9; where text and code differ, a switch).

A thread's replies are its moves in order, None for one that broke its form.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from rolecast.methods.coda.moves import ANSWER, Move
from rolecast.rewards.text import cover_exact_match

Needs = Literal["both", "either"]
Replies = Sequence[Move | None]


def answer_reward(f1: float) -> float:
    """R_ans = 6 · F1 − 3, in [−3, 3] (eq. 5)."""
    return 6 * f1 - 3


def planner_format(replies: Replies, needs: Needs) -> bool:
    """I_P (eq. 6). `both`: every reply well formed, at least one task, and an answer (code). `either`: the last reply is a
    well-formed task or answer (text), which a planner that delegates nothing earns too.
    """
    if needs == "either":
        return bool(replies) and replies[-1] is not None
    return _whole(replies) and "task" in _acts(replies)


def executor_format(replies: Replies, needs: Needs) -> bool:
    """One executor's part of I_E (eq. 6). `both`: every reply well formed, at least one search with a refine, and an answer (code);
    one that delegated needs none of its own. `either`: every reply is a well-formed act (text).
    """
    if needs == "either":
        return bool(replies) and None not in replies
    worked = "task" in _acts(replies) or ("search" in _acts(replies) and any(move and move.refine is not None for move in replies))
    return _whole(replies) and worked


def executors_format(right: Sequence[float], of: Literal["all", "mean"]) -> float:
    """I_E: whether all executors are right (text), or the share that is (code). Without any executor 0."""
    if not right:
        return 0.0
    return float(all(right)) if of == "all" else fmean(right)


def refined(notes: Sequence[str], golds: Sequence[str]) -> float:
    """I[s_combined ≠ ∅] · I[a gold answer occurs in s_combined], over all refine texts of the rollout in a row (eq. 7, 8).

    Containment is on the words of the normalised texts, so no gold answer is found inside a longer word.
    """
    combined = " ".join(note for note in notes if note)
    return cover_exact_match(combined, golds) if combined else 0.0


def _acts(replies: Replies) -> list[str]:
    return [move.act for move in replies if move is not None]


def _whole(replies: Replies) -> bool:
    """Nothing broke its form, and the last reply is the answer."""
    return bool(replies) and None not in replies and _acts(replies)[-1] == ANSWER
