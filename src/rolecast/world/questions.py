"""Questions over a graph of facts: chains of 1 to 4 hops, comparisons and intersections, each with its gold chain."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rolecast.errors import InputError
from rolecast.types import Gold, Hop, Question
from rolecast.world.grammar import (
    RELATIONS_OF,
    Fact,
    chain_question,
    choice_question,
    comparison_question,
    earlier_question,
    intersection_question,
)
from rolecast.world.graph import Graph

PassageOf = Callable[[Fact], str]
TRIES = 5000  # draws in a row without a new question, after which there are taken to be no more of its kind


@dataclass(frozen=True, slots=True)
class Draft:
    """A question before it has an identity: its text, answers, and the facts in the order in which they are needed.

    A fact without an object is one that no passage states.
    """

    text: str
    answers: tuple[str, ...]
    facts: tuple[tuple[Fact, str], ...]  # (fact, query that finds it)
    type: str

    def question(self, id: str, passage_of: PassageOf) -> Question:
        hops = tuple(
            Hop(f.subject, f.relation, f.object, *((f.sentence, passage_of(f)) if f.object else (f.missing, "")), query)
            for f, query in self.facts
        )
        gold = Gold(self.answers, hops, tuple(hop.passage for hop in hops if hop.stated))
        return Question(id, self.text, gold, self.type, len(hops))


def distinct(count: int, draw: Callable[[int], Draft | None], entities: int, split: str) -> list[Draft]:
    """`count` drafts of different texts: `draw` is asked for the one with each number until it gives a new one.

    Raises InputError where there are taken to be no more.
    """
    drafts: list[Draft] = []
    texts: set[str] = set()
    tries = 0  # since the last new question
    while len(drafts) < count:
        draft = draw(len(drafts))
        tries += 1
        if draft is not None and draft.text not in texts:
            texts.add(draft.text)
            drafts.append(draft)
            tries = 0
        elif tries == TRIES:
            raise InputError(
                f"the world's {entities} entities of split {split} give {len(drafts)} distinct questions, not {count}; "
                f"raise its entities or lower its questions"
            )
    return drafts


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


def draft_earlier(first: tuple[Fact, ...], second: tuple[Fact, ...]) -> Draft | None:
    """Whose year is earlier. Each way ends with the fact that has the year, after the one that leads to its subject, if one must.

    None where both are of one entity, or of one year.
    """
    dates = (first[-1], second[-1])
    if dates[0].subject == dates[1].subject or dates[0].object == dates[1].object:
        return None
    named = [f"the {way[0].relation} of {way[0].subject}" if len(way) > 1 else way[0].subject for way in (first, second)]
    earlier = min(dates, key=lambda fact: int(fact.object))
    text = earlier_question(dates[0].relation, *named)
    return Draft(text, (earlier.subject,), tuple((fact, fact.query) for fact in (*first, *second)), "comparison")


def draft_choice(listing: Fact, checks: Sequence[Fact], wanted: Fact) -> Draft:
    """Who on a list has the `wanted` object: everyone on it is asked for theirs, in its order."""
    facts = tuple((fact, fact.query) for fact in (listing, *checks))
    return Draft(choice_question(listing, wanted), (wanted.subject,), facts, "intersection")


class RelationsOf:
    """Which relations an entity has, by its type."""

    def __init__(self, types: dict[str, str]) -> None:
        self._types = types

    def __call__(self, entity: str) -> Sequence[str]:
        return RELATIONS_OF[self._types[entity]]
