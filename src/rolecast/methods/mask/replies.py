"""How the roles' replies are read. A reply of an illegal form is read as well as it can be, so that no episode ends of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rolecast.methods.mask.state import NOTHING, UNKNOWN, Step
from rolecast.tags import blocks

T = TypeVar("T")
END = "<end>"
MOST_STEPS, MOST_WORDS = 5, 75  # of a plan and of evidence, as the authors' code has them
_PAIR = re.compile(r"<q(\d+)>(.*?)</q\1>\s*<a\1>(.*?)</a\1>", re.DOTALL)
_CHANGE = re.compile(r"\s*<(Update|Add)>\s*t(\d{1,4})\s*</\1>\s*")
_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """What a reply means, and whether its form is legal."""

    content: T
    legal: bool


@dataclass(frozen=True, slots=True)
class Plan:
    steps: Sequence[Step]
    answer: str


def spoken(text: str) -> str:
    """Without the thoughts that a reasoning model begins with: they are no part of the form."""
    return _THOUGHTS.sub("", text)


def read_plan(text: str) -> Read[Plan]:
    """`<q1>…</q1><a1>…</a1>` and so on, then `<predicted_answer>`; without the latter the answer is unknown.

    Legal are up to MOST_STEPS sub-questions, no two of them the same.
    """
    pairs = _PAIR.findall(text)
    tags = [f"{kind}{number}" for number in range(1, len(pairs) + 1) for kind in "qa"]
    found = blocks(text, *tags, "predicted_answer")
    steps = [Step(query.strip(), answer.strip() or UNKNOWN) for _, query, answer in pairs if query.strip()]
    fits = 1 <= len(pairs) <= MOST_STEPS and len({step.query for step in steps}) == len(pairs)
    answer = found["predicted_answer"] if found else _inside(text, "predicted_answer")
    return Read(Plan(steps, answer or UNKNOWN), fits and found is not None and all(found.values()))


def read_search(text: str) -> Read[str | None]:
    """The query; None for `<end>`, and where nothing can be made of the reply."""
    if text.strip() == END:
        return Read(None, True)
    if query := _block(text, "search"):
        return Read(query, True)
    return Read((_inside(text, "search") if END in text else _content(text, "search")) or None, False)


def read_summary(text: str) -> Read[str]:
    """The evidence, legal up to MOST_WORDS; where nothing can be made of the reply, that there is none."""
    evidence = _block(text, "evidence")
    return Read(evidence or _content(text, "evidence") or NOTHING, 0 < len(evidence.split()) <= MOST_WORDS)


def read_update(text: str, steps: int) -> Read[int]:
    """The number of the step that the evidence goes to: one of the trajectory's `steps`, or the next one, which is new.

    An index that nothing stands under, or that is not the next one, is a fault; whatever is illegal adds a step.
    """
    change = _CHANGE.fullmatch(text)
    number = int(change[2]) if change else 0
    legal = change is not None and (1 <= number <= steps if change[1] == "Update" else number == steps + 1)
    return Read(number if legal else steps + 1, legal)


def read_answer(text: str) -> Read[str]:
    answer = _block(text, "predicted_answer")
    return Read(answer or _content(text, "predicted_answer"), bool(answer))


def _block(text: str, tag: str) -> str:
    """The content of a reply that is this block and nothing else; empty where it is not."""
    return (blocks(text, tag) or {tag: ""})[tag]


def _content(text: str, tag: str) -> str:
    return _inside(text, tag) if f"<{tag}>" in text else _bare(text)


def _inside(text: str, tag: str) -> str:
    """What stands after the opening tag, up to the closing one if there is one."""
    return _bare(text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0])


def _bare(text: str) -> str:
    """Without anything that looks like a tag."""
    return re.sub(r"\s*</?\w+>\s*", " ", text).strip()
