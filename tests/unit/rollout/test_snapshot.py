"""What an action's state is recorded as: `copy.deepcopy`'s copy, sooner."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest

from rolecast.rollout.snapshot import snapshot
from rolecast.types import Passage


@dataclass(slots=True)
class Inner:
    words: list[str]


@dataclass(frozen=True, slots=True)
class Frozen:
    inner: Inner
    pair: tuple[str, list[int]]


@dataclass
class Plain:
    frozen: Frozen
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Child(Inner):
    seen: set[str] = field(default_factory=set)
    rest: Any = None


@dataclass
class Mixed(Child):
    more: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Shared:
    """Says itself how it is copied."""

    number: int

    def __deepcopy__(self, memo: dict[int, object]) -> Shared:
        return self


VALUES = [
    None, 1, "text", [1, [2]], {"a": [1], ("b", 2): {"c": {3}}}, (1, [2]), {1, 2}, deque([[1], [2]]),
    Plain(Frozen(Inner(["a"]), ("b", [1])), {"c": 2}), Child(["a"], {"b"}, {"x": [Inner(["y"])]}), Mixed(["a"], {"b"}, None, [1]),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_copy_is_deepcopys(value: Any) -> None:
    assert snapshot(value) == copy.deepcopy(value)
    assert type(snapshot(value)) is type(value)


def test_later_changes_do_not_reach_it() -> None:
    state = Mixed(["a"], {"b"}, {"x": [Inner(["y"])], "d": deque([["z"]])}, [1])
    recorded, before = snapshot(state), copy.deepcopy(state)
    state.words.append("new")
    state.seen.add("new")
    state.rest["x"][0].words.append("new")
    state.rest["d"][0].append("new")
    state.rest["more"] = 1
    state.more.append(2)
    assert recorded == before


def test_frozen_ones_are_copied_with_what_they_hold() -> None:
    state = Frozen(Inner(["a"]), ("b", [1]))
    recorded = snapshot(state)
    state.inner.words.append("new")
    state.pair[1].append(2)
    assert recorded == Frozen(Inner(["a"]), ("b", [1]))


def test_attributes_that_are_no_fields_are_copied() -> None:
    state = Plain(Frozen(Inner([]), ("b", [])))
    state.note = ["by hand"]  # type: ignore[attr-defined]
    recorded: Any = snapshot(state)
    state.note.append("new")  # type: ignore[attr-defined]
    assert recorded.note == ["by hand"]


def test_field_that_was_never_set_stays_so() -> None:
    state = object.__new__(Child)
    state.words = ["a"]
    recorded = snapshot(state)
    assert recorded.words == ["a"]
    assert not hasattr(recorded, "seen")


def test_own_copying_is_kept() -> None:
    passage, shared = Passage("1", "title", "text"), Shared(1)
    recorded = snapshot([passage, shared, {"again": shared}])
    assert recorded[0] is passage
    assert recorded[1] is shared
    assert recorded[2]["again"] is shared


def test_one_object_stays_one_and_a_circle_a_circle() -> None:
    inner = Inner(["a"])
    state: list[Any] = [inner, {"same": inner}, deque([inner])]
    state.append(state)
    recorded = snapshot(state)
    assert recorded[0] is recorded[1]["same"] is recorded[2][0]
    assert recorded[0] is not inner
    assert recorded[3] is recorded
