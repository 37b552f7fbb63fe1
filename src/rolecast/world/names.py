"""Invented names: two words of one syllable each, drawn from one fixed inventory that every split shares.

A name is new, its syllables never are: a model that has read other names can spell it, but can know nothing about it.
"""

from __future__ import annotations

import random

_ONSETS = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "sk",
    "st",
    "t",
    "tr",
    "v",
    "vr",
    "z",
]
_NUCLEI = ["a", "e", "i", "o", "u"]
_CODAS = ["l", "n", "r", "k", "m", "x"]
_ENGLISH = {
    "bar",
    "bed",
    "big",
    "bun",
    "den",
    "dim",
    "dol",
    "dom",
    "far",
    "fin",
    "fix",
    "fun",
    "gum",
    "gun",
    "ham",
    "hen",
    "her",
    "him",
    "jam",
    "jim",
    "job",
    "kin",
    "kim",
    "lax",
    "man",
    "max",
    "men",
    "mix",
    "nun",
    "nil",
    "pan",
    "pen",
    "pin",
    "ran",
    "ram",
    "rum",
    "run",
    "sam",
    "sex",
    "sin",
    "six",
    "sum",
    "sun",
    "tan",
    "tax",
    "ten",
    "tin",
    "tom",
    "tum",
    "van",
    "vim",
    "bin",
    "ban",
    "tar",
    "par",
    "bum",
    "dark",
    "mark",
    "park",
    "skin",
    "star",
    "stem",
    "trim",
    "drum",
    "drunk",
    "fox",
    "box",
    "ox",
    "ken",
    "dan",
    "don",
    "ron",
    "jar",
    "mar",
    "lol",
    "hum",
    "hem",
    "for",
    "nor",
    "tor",
    "fur",
    "sir",
    "fir",
}

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
