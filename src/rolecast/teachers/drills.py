"""Drills: rows that practise one skill many times over, before the teacher's turns ask for it once among easy tokens.

A reading drill states invented facts and says them again in another order: to do so, a model must find each by its
relation and both words of the name, or, where the fact's inverse query comes first, by relation and object. An
intersecting drill lists the names that two searches found and says which of them came twice.

For crowded worlds a reading drill has years and lists among its objects, and states what was so before, of which nothing is said. A
comparing drill, which stands in the place of an intersecting one, says whose year is the earlier of two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from rolecast.rollout.render import Renderer
from rolecast.tags import tagged
from rolecast.types import Example
from rolecast.world.crowded import OUTDATED
from rolecast.world.grammar import AND, DATED, LISTED, RELATIONS, YEARS, Fact
from rolecast.world.names import SYLLABLES, draw_name
from rolecast.world.throwaway import COUNTERFACTUAL, CROWDED

FACTS = 5
WORDS = 8  # syllables that subjects are built of: few, so that names share words as a search engine's hits do
KINDS = 4  # relations in play
INVERSE = 0.3  # share of facts that are said after their inverse query
INTERSECTING = 0.2  # share of intersecting drills, or of comparing ones
ROUNDS = 10  # intersections, or comparisons, in one of them


def draw_drill(renderer: Renderer, rng: random.Random, world: str = COUNTERFACTUAL) -> Example:
    """`world`: the kind of the run's own."""
    if rng.random() >= INTERSECTING:
        return draw_crowded_reading(renderer, rng) if world == CROWDED else draw_reading(renderer, rng)
    return draw_comparing(renderer, rng) if world == CROWDED else draw_intersecting(renderer, rng)


def draw_reading(renderer: Renderer, rng: random.Random) -> Example:
    relations = rng.sample(list(RELATIONS), KINDS)
    facts = _draw_facts(rng, lambda: rng.choice(relations), lambda relation: draw_name(rng))
    return _said_again(renderer, [fact.sentence for fact in facts], facts, rng)


def draw_crowded_reading(renderer: Renderer, rng: random.Random) -> Example:
    relations = [*rng.sample(list(RELATIONS), KINDS), rng.choice(list(DATED.values())), rng.choice(list(LISTED.values()))]
    facts = _draw_facts(rng, lambda: rng.choice(relations), lambda relation: _draw_object(relation, rng))
    once = [replace(fact, object=draw_name(rng)).outdated for fact in facts if fact.relation in RELATIONS and rng.random() < OUTDATED]
    stated = [*once, *(fact.sentence for fact in facts)]
    rng.shuffle(stated)
    return _said_again(renderer, stated, facts, rng)


def _draw_object(relation: str, rng: random.Random) -> str:
    if relation in DATED.values():
        return rng.choice(YEARS)
    return AND.join((draw_name(rng), draw_name(rng))) if relation in LISTED.values() else draw_name(rng)


def _draw_facts(rng: random.Random, relation_of: Callable[[], str], object_of: Callable[[str], str]) -> list[Fact]:
    """Of subjects that share words with each other."""
    words = rng.sample(SYLLABLES, WORDS)
    facts: dict[tuple[str, str], Fact] = {}
    while len(facts) < FACTS:
        subject, relation = f"{rng.choice(words)} {rng.choice(words)}", relation_of()
        facts.setdefault((subject, relation), Fact(subject, relation, object_of(relation)))
    return list(facts.values())


def _said_again(renderer: Renderer, stated: Sequence[str], facts: Sequence[Fact], rng: random.Random) -> Example:
    """What is stated is read; the facts are then said in another order, some of them after their inverse query."""
    said = rng.sample(facts, len(facts))
    asked = [f" {fact.inverse_query}:" if rng.random() < INVERSE else "" for fact in said]
    return _row(
        renderer,
        [(f" {sentence}", False) for sentence in stated]
        + [(f"{query} {fact.sentence}", True) for query, fact in zip(asked, said, strict=True)],
    )


def draw_intersecting(renderer: Renderer, rng: random.Random) -> Example:
    """Rounds in the form of an answerer's reply, after the first word of the question that they answer."""
    pieces = [(" Which", False)]
    for _ in range(ROUNDS):
        common = draw_name(rng)
        results = [[common, *(draw_name(rng) for _ in range(rng.randrange(2)))] for _ in range(2)]
        names = [name for result in results for name in rng.sample(result, len(result))]
        pieces += [(tagged("think", " and ".join(names)), False), (tagged("answer", common), True)]
    return _row(renderer, pieces)


def draw_comparing(renderer: Renderer, rng: random.Random) -> Example:
    """Rounds in the form of an answerer's reply, after the first word of the question that they answer."""
    pieces = [(" Whose", False)]
    for _ in range(ROUNDS):
        relation = rng.choice(list(DATED.values()))
        facts = [Fact(draw_name(rng), relation, year) for year in rng.sample(YEARS, 2)]
        quoted = " ".join(fact.sentence for fact in facts)
        pieces += [(tagged("think", quoted), False), (tagged("answer", min(facts, key=lambda fact: fact.object).subject), True)]
    return _row(renderer, pieces)


def _row(renderer: Renderer, pieces: Sequence[tuple[str, bool]]) -> Example:
    """Texts with whether they are trained: what is read is not, nor are names that nothing foretells."""
    encoded = [(renderer.encode(text), trained) for text, trained in pieces]
    ids = tuple(token for tokens, _ in encoded for token in tokens)
    return Example(ids, tuple(trained for tokens, trained in encoded for _ in tokens), tag="drill")
