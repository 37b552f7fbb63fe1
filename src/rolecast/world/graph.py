"""A set of facts with the two look-ups that questions and retrieval need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rolecast.world.grammar import Fact


class Graph:
    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self.facts: list[Fact] = []
        self._forward: dict[tuple[str, str], Fact] = {}
        self._inverse: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        self._of_subject: dict[str, list[Fact]] = defaultdict(list)
        for fact in facts:
            self.add(fact)

    def add(self, fact: Fact) -> Fact:
        """Each subject has one object per relation; a second one is a fault of the caller."""
        key = (fact.relation, fact.subject)
        if key in self._forward:
            raise ValueError(f"{fact.relation} of {fact.subject} is already {self._forward[key].object}")
        self.facts.append(fact)
        self._forward[key] = fact
        self._inverse[fact.relation, fact.object].append(fact)
        self._of_subject[fact.subject].append(fact)
        return fact

    def object_of(self, relation: str, subject: str) -> Fact | None:
        return self._forward.get((relation, subject))

    def subjects_of(self, relation: str, obj: str) -> list[Fact]:
        return self._inverse.get((relation, obj), [])

    def about(self, subject: str) -> list[Fact]:
        return self._of_subject.get(subject, [])
