"""Questions over a graph of facts: chains of 1 to 4 hops, comparisons and intersections, each with its gold chain."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rolecast.types import Gold, Hop, Question
from rolecast.world.grammar import (
    RELATIONS_OF,
    Fact,
    chain_question,
    comparison_question,
    intersection_question,
)
from rolecast.world.graph import Graph

PassageOf = Callable[[Fact], str]


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it has an identity: its text, answers, and the facts in the order in which they are needed."""

    text: str
    answers: tuple[str, ...]
    facts: tuple[tuple[Fact, str], ...]  # (fact, query that finds it)
    type: str

    def question(self, id: str, passage_of: PassageOf) -> Question:
        hops = tuple(Hop(f.subject, f.relation, f.object, f.sentence, passage_of(f), query) for f, query in self.facts)
        gold = Gold(self.answers, hops, tuple(hop.passage for hop in hops))
        return Question(id, self.text, gold, self.type, len(hops))


def draft_chain(graph: Graph, subject: str, hops: int, rng: random.Random, relations_of: RelationsOf) -> Draft | None:
    """A walk of `hops` relations, none of them twice, that meets no entity twice. None if the walk gets stuck."""
    facts: list[Fact] = []
    seen = {subject}
    at = subject
    for _ in range(hops):
        used = {fact.relation for fact in facts}
        options = [r for r in relations_of(at) if r not in used]
        fact = graph.object_of(rng.choice(options), at) if options else None
        if fact is None or fact.object in seen:
            return None
        facts.append(fact)
        seen.add(fact.object)
        at = fact.object
    text = chain_question([fact.relation for fact in facts], subject)
    return Draft(text, (at,), tuple((fact, fact.query) for fact in facts), "chain")


def draft_comparison(first: Fact, second: Fact) -> Draft:
    """Whether two entities have the same object. `first.relation == second.relation`."""
    text = comparison_question(first.relation, first.subject, second.subject)
    answer = "yes" if first.object == second.object else "no"
    return Draft(text, (answer,), ((first, first.query), (second, second.query)), "comparison")


def draft_intersection(kind: str, first: Fact, second: Fact) -> Draft:
    """The entity that has both objects. `first.subject == second.subject`; both are found by their objects."""
    text = intersection_question(kind, first, second)
    return Draft(text, (first.subject,), ((first, first.inverse_query), (second, second.inverse_query)), "intersection")


class RelationsOf:
    """Which relations an entity has, by its type."""

    def __init__(self, types: dict[str, str]) -> None:
        self._types = types

    def __call__(self, entity: str) -> Sequence[str]:
        return RELATIONS_OF[self._types[entity]]
