"""Invented names: always new, of syllables that are never new."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rolecast.config import WorldConfig
from rolecast.seeding import stream
from rolecast.world.grammar import lexicon
from rolecast.world.names import SYLLABLES, draw_name, draw_names, near_name

SEEDS = st.integers(0, 10**9).map(random.Random)
TABOO = ("Man", "Sun", "Park", "Mark", "Box", "Ten", "Six", "For", "Nor", "Run")


def agreements(first: str, second: str) -> int:
    return sum(a == b for a, b in zip(first.split(), second.split(), strict=True))


def test_the_inventory_is_distinct_and_spelled_like_names() -> None:
    assert len(SYLLABLES) == len(set(SYLLABLES)) == 336
    assert all(s.isascii() and s.isalpha() and s == s.capitalize() and 3 <= len(s) <= 4 for s in SYLLABLES)


def test_no_syllable_is_a_word_that_the_world_or_english_uses() -> None:
    assert not {s.lower() for s in SYLLABLES} & {*map(str.lower, lexicon()), *map(str.lower, TABOO)}


@given(SEEDS)
def test_a_name_is_two_syllables_of_the_inventory(rng: random.Random) -> None:
    first, second = draw_name(rng).split()
    assert {first, second} <= set(SYLLABLES)


@given(SEEDS)
def test_a_near_name_shares_one_word_in_its_place(rng: random.Random) -> None:
    name = draw_name(rng)
    assert agreements(name, near_name(name, rng)) == 1


def test_a_near_name_is_never_the_name_itself() -> None:
    rng, name = random.Random(0), " ".join(SYLLABLES[:2])
    assert all(agreements(name, near_name(name, rng)) == 1 for _ in range(8000))


def test_near_names_share_either_word_half_of_the_time() -> None:
    rng = random.Random(0)
    firsts = sum(near_name("Bel Dax", rng).startswith("Bel ") for _ in range(2000))
    assert 900 < firsts < 1100


def test_names_are_new_and_the_taken_are_remembered() -> None:
    taken: set[str] = set()
    first = draw_names(400, random.Random(1), taken=taken)
    second = draw_names(400, random.Random(1), taken=taken)
    assert len({*first, *second}) == 800
    assert taken == {*first, *second}


def test_every_name_is_close_to_an_earlier_one_if_asked() -> None:
    names = draw_names(300, random.Random(2), near=1.0)
    assert all(any(agreements(name, earlier) for earlier in names[:at]) for at, name in enumerate(names) if at)


def test_more_names_are_close_to_each_other_the_more_are_asked_for() -> None:
    pairs = []
    for near in (0.0, 0.5, 1.0):
        names = draw_names(300, random.Random(2), near=near)
        pairs.append(sum(agreements(name, earlier) for at, name in enumerate(names) for earlier in names[:at]))
    assert 180 < pairs[0] < 360  # 2 / 336 of 44,850 pairs by chance
    assert pairs[0] + 100 < pairs[1] < pairs[2]


def test_names_are_a_function_of_the_random_stream() -> None:
    assert draw_names(50, random.Random(3)) == draw_names(50, random.Random(3))
    assert draw_names(50, random.Random(3)) != draw_names(50, random.Random(4))


def test_every_syllable_that_dev_and_test_use_occurs_in_training() -> None:
    taken: set[str] = set()
    entities = WorldConfig().entities
    words = {
        split: {word for name in draw_names(count, stream(0, "names", split), taken=taken) for word in name.split()}
        for split, count in entities.items()
    }
    assert words["train"] == set(SYLLABLES)
    assert words["dev"] | words["test"] <= words["train"]
