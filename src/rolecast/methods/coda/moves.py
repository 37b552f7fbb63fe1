"""What CoDA's roles may say, how it is read, and how the environment answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolecast.methods.base import PromptStyle
from rolecast.tags import blocks, tagged
from rolecast.types import Passage

ANSWER = "answer"
# What each role may do beside answering: "monolith" is the ablation without executors, "lead" an executor that may delegate.
ACTS: Mapping[str, tuple[str, ...]] = {
    "planner": ("task",),
    "lead": ("task", "search"),
    "executor": ("search",),
    "monolith": ("search",),
}
# What may stand before an act: thoughts, and once there were documents, what is kept of them.
_PLAIN = (("think",),)
_REFINING = (("refine",), ("refine", "think"), ("think", "refine"), ("think",))
_ACTS_SAID = {"task": "a task in <task> </task>", "search": "a query in <search> </search>"}
AGAIN = "again"  # what a compact prompt's reader is told after a reply that broke its form


@dataclass(frozen=True, slots=True)
class Move:
    """One well-formed reply. `refine` is what it kept of the documents, None where it had no such block."""

    act: str  # "task", "search" or "answer"
    content: str
    refine: str | None = None


def stops(role: str) -> tuple[str, ...]:
    return tuple(f"</{act}>" for act in (*ACTS[role], ANSWER))


def read(text: str, role: str, searched: bool) -> Move | None:
    """None where the reply is no move of the role, or says nothing. `searched`: whether its context holds documents."""
    for act in (*ACTS[role], ANSWER):
        for before in _REFINING if searched else _PLAIN:
            found = blocks(text, *before, act)
            if found and found[act]:
                return Move(act, found[act], found.get("refine"))
    return None


def shown(passages: Sequence[Passage], style: PromptStyle) -> str:
    """A search's observation, whole: an executor that finds no room for it fails alone."""
    if style == "compact":
        lines = [f" {passage.text}" for passage in passages]
    else:
        lines = [f"Doc {rank} (Title: {passage.title}) {passage.text}" for rank, passage in enumerate(passages, 1)]
    return "\n<documents>" + "\n".join(lines) + "</documents>\n"


def result(text: str) -> str:
    """All that the planner reads of an executor."""
    return f"\n{tagged('result', text)}\n"


def again(role: str, style: PromptStyle) -> str:
    """What answers a reply that is no move."""
    if style == "compact":
        return f"\n {AGAIN}\n"
    ways = ", or ".join([*(_ACTS_SAID[act] for act in ACTS[role]), "the answer in <answer> </answer>"])
    return f"\nThat reply broke its form. After your thoughts put {ways}.\n"
