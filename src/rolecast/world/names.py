"""Invented names: two words of one syllable each, drawn from one fixed inventory that every split shares.

A name is new, its syllables never are: a model that has read other names can spell it, but can know nothing about it.
"""

from __future__ import annotations

import random

_ONSETS = "b br d dr f g gr h j k kr l m n p pr r s sk st t tr v vr z".split()  # noqa: SIM905
_NUCLEI = "aeiou"
_CODAS = "lnrkmx"
_ENGLISH = frozenset(
    """
    ban bar bed big bin box bum bun dan dark den dim dol dom don drum drunk far fin fir fix for fox fun fur gum
    gun ham hem hen her him hum jam jar jim job ken kim kin lax lol man mar mark max men mix nil nor nun ox pan
    par park pen pin ram ran ron rum run sam sex sin sir six skin star stem sum sun tan tar tax ten tin tom tor
    trim tum van vim
    """.split()  # noqa: SIM905
)

_ALL = [(o + n + c) for o in _ONSETS for n in _NUCLEI for c in _CODAS]
SYLLABLES: tuple[str, ...] = tuple(sorted({s.capitalize() for s in _ALL if s not in _ENGLISH})[::2])[:336]


def draw_name(rng: random.Random) -> str:
    return f"{rng.choice(SYLLABLES)} {rng.choice(SYLLABLES)}"


def near_name(name: str, rng: random.Random) -> str:
    """A name that shares exactly one word with `name`."""
    first, second = name.split()
    while True:
        other = rng.choice(SYLLABLES)
        if rng.random() < 0.5 and other != second:
            return f"{first} {other}"
        if other != first:
            return f"{other} {second}"


def mirrored(name: str) -> str:
    """The same words in the other order: whoever searches by words cannot tell the two apart."""
    first, second = name.split()
    return f"{second} {first}"


def draw_names(count: int, rng: random.Random, near: float = 0.5, taken: set[str] | None = None) -> list[str]:
    """`count` new names, each with probability `near` close to an earlier one; `taken` names are avoided and extended."""
    taken = set() if taken is None else taken
    names: list[str] = []
    while len(names) < count:
        name = near_name(rng.choice(names), rng) if names and rng.random() < near else draw_name(rng)
        if name not in taken:
            taken.add(name)
            names.append(name)
    return names
