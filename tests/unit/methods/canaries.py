"""Canaries: words that occur nowhere else, one in every field that a prompt might leak, and a question that is full of them."""

from __future__ import annotations

import re
from typing import Any

from rolecast.methods.base import Method
from rolecast.methods.registry import find
from rolecast.types import Gold, Hop, Observation, Passage, Question, Trajectory

STYLES = ("instruct", "compact")
CANARY = re.compile(r"zq(\w+?)qz")


def canary(name: str) -> str:
    return f"zq{name}qz"


def canaries_in(text: str) -> set[str]:
    return set(CANARY.findall(text))


def document(name: str) -> Passage:
    return Passage(canary(f"{name}id"), canary(f"{name}title"), canary(f"{name}text"), 0.5)


def method_of(name: str, style: str, **options: Any) -> Method:
    make = find(name)
    return make(make.config_type(prompts=style, **options))


GOLD = Gold(
    (canary("goldanswer"),),
    (Hop(*(canary(f"gold{part}") for part in ("subject", "relation", "object", "fact", "passage", "query"))),),
    (canary("goldpassage"),),
)
QUESTION = Question(canary("id"), canary("question"), GOLD, canary("type"), 1, {canary("givenkey"): canary("givenvalue")})
FOUND = {canary("first"): [document("one"), document("noise")], canary("second"): [document("two")], canary("question"): [document("one")]}


def read(t: Trajectory, role: str) -> list[set[str]]:
    """The canaries in each observation of a role, in order."""
    return [canaries_in(turn.text) for thread in t.threads_of(role) for turn in thread.turns if isinstance(turn, Observation)]
