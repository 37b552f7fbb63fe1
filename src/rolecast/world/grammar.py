"""How the world speaks: relations, sentences, queries and questions, and how to read them back.

A fact is (subject, relation, object). Its passage is one sentence, "The mentor of Brol Tan is Vrek Stom." Relations
have distinct names, so a relation's name tells the type of its subject and of its object.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

RELATIONS: dict[str, tuple[str, str]] = {  # relation: (type of the subject, type of the object)
    "mentor": ("person", "person"),
    "birthplace": ("person", "city"),
    "employer": ("person", "company"),
    "mayor": ("city", "person"),
    "twin": ("city", "city"),
    "sponsor": ("city", "company"),
    "founder": ("company", "person"),
    "headquarters": ("company", "city"),
    "supplier": ("company", "company"),
}
TYPES = ("person", "city", "company")
RELATIONS_OF: dict[str, tuple[str, ...]] = {t: tuple(r for r, (s, _) in RELATIONS.items() if s == t) for t in TYPES}
DATED = {"person": "birth", "city": "charter", "company": "opening"}  # of crowded worlds: what of each type has a year
LISTED = {"person": "family", "city": "council", "company": "board"}  # and what is a list of two persons, with `AND` between them
AND = " and "
YEARS = tuple(str(year) for year in range(1900, 1920))  # few, so that a small model sees each often enough to learn their order


@dataclass(frozen=True, slots=True)
class Fact:
    subject: str
    relation: str
    object: str

    @property
    def sentence(self) -> str:
        return f"The {self.relation} of {self.subject} is {self.object}."

    @property
    def outdated(self) -> str:
        """Says that it was so once. `facts_in` reads no fact in it."""
        return f"The {self.relation} of {self.subject} was {self.object}."

    @property
    def missing(self) -> str:
        """Says that no passage states the subject's object; of a fact without one."""
        return f"No passage states the {self.relation} of {self.subject}."

    @property
    def atom(self) -> str:
        """The shortest form that `facts_in` still reads: what memory is condensed to."""
        return f"{self.relation} of {self.subject}: {self.object}."

    @property
    def query(self) -> str:
        return forward_query(self.relation, self.subject)

    @property
    def inverse_query(self) -> str:
        return inverse_query(self.relation, self.object)


def forward_query(relation: str, subject: str) -> str:
    return f"{relation} of {subject}"


def inverse_query(relation: str, obj: str) -> str:
    return f"{relation} is {obj}"


def rephrased(query: str) -> str:
    """The same request in other words, for asking again after a miss."""
    head, link, tail = query.split(" ", 2)
    return f"{tail} {head}" if link == "of" else f"{tail} as {head}"


_FACT = re.compile(r"(?:\bThe )?\b([a-z]+) of ([^\s.:a-z][^.:\n]*?)(?: is |: )([^.:\n]+)\.")


def facts_in(text: str) -> list[Fact]:
    """Every fact that `text` states, as a sentence or as an atom on one line, in order of appearance."""
    return [Fact(subject=m[2], relation=m[1], object=m[3]) for m in _FACT.finditer(text)]


def sentences(text: str) -> list[str]:
    return [s for s in re.split(r"(?<=\.)\s+", text.strip()) if s]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def names(text: str, phrase: str) -> bool:
    """Whether `text` contains `phrase` on word boundaries, whatever the case and punctuation."""
    return f" {' '.join(words(phrase))} " in f" {' '.join(words(text))} "


def interrogative(relation: str, relations: dict[str, tuple[str, str]] = RELATIONS) -> str:
    return "Who" if relations[relation][1] == "person" else "What"


def chain_question(relations: Sequence[str], subject: str, table: dict[str, tuple[str, str]] = RELATIONS) -> str:
    """`relations` in the order in which they are resolved: the first is asked of `subject`."""
    path = " of ".join(f"the {relation}" for relation in reversed(relations))
    return f"{interrogative(relations[-1], table)} is {path} of {subject}?"


def comparison_question(relation: str, first: str, second: str) -> str:
    return f"Do {first} and {second} have the same {relation}?"


def earlier_question(relation: str, first: str, second: str) -> str:
    return f"Whose {relation} is earlier, {first} or {second}?"


def choice_question(listing: Fact, wanted: Fact) -> str:
    return f"Who of the {listing.relation} of {listing.subject} has the {wanted.relation} {wanted.object}?"


def intersection_question(kind: str, first: Fact, second: Fact) -> str:
    return f"Which {kind} has the {first.relation} {first.object} and the {second.relation} {second.object}?"


def lexicon() -> list[str]:
    """Every word that passages, queries, questions and the scripted teachers use beside names."""
    plain = ["The", "the", "of", "is", "as", "Who", "What", "Which", "Do", "and", "have", "has", "same", "yes", "no", "unknown"]
    return sorted({*RELATIONS, *TYPES, *plain, "?", ".", ":", ",", ";"})


def crowded_lexicon() -> list[str]:
    """The words that crowded worlds use besides."""
    return [*DATED.values(), *LISTED.values(), *YEARS, "Whose", "earlier", "or", "was"]
