"""Drills: rows that practise one skill many times over, before the teacher's turns ask for it once among easy tokens.

A reading drill states invented facts and says them again in another order: to do so, a model must find each by its
relation and both words of the name, or, where the fact's inverse query comes first, by relation and object. An
intersecting drill lists the names that two searches found and says which of them came twice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from rolecast.rollout.render import Renderer
from rolecast.tags import tagged
from rolecast.types import Example
from rolecast.world.grammar import RELATIONS, Fact
from rolecast.world.names import SYLLABLES, draw_name

FACTS = 5
WORDS = 8  # syllables that subjects are built of: few, so that names share words as a search engine's hits do
KINDS = 4  # relations in play
INVERSE = 0.3  # share of facts that are said after their inverse query
INTERSECTING = 0.2  # share of intersecting drills
ROUNDS = 10  # intersections in one of them


def draw_drill(renderer: Renderer, rng: random.Random) -> Example:
    return draw_intersecting(renderer, rng) if rng.random() < INTERSECTING else draw_reading(renderer, rng)


def draw_reading(renderer: Renderer, rng: random.Random) -> Example:
    relations = rng.sample(list(RELATIONS), KINDS)
    words = rng.sample(SYLLABLES, WORDS)
    facts: dict[tuple[str, str], Fact] = {}
    while len(facts) < FACTS:
        subject, relation = f"{rng.choice(words)} {rng.choice(words)}", rng.choice(relations)
        facts.setdefault((subject, relation), Fact(subject, relation, draw_name(rng)))
    read = list(facts.values())
    said = rng.sample(read, FACTS)
    asked = [f" {fact.inverse_query}:" if rng.random() < INVERSE else "" for fact in said]
    return _row(
        renderer,
        [(f" {fact.sentence}", False) for fact in read]
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


def _row(renderer: Renderer, pieces: Sequence[tuple[str, bool]]) -> Example:
    """Texts with whether they are trained: what is read is not, nor are names that nothing foretells."""
    encoded = [(renderer.encode(text), trained) for text, trained in pieces]
    ids = tuple(token for tokens, _ in encoded for token in tokens)
    return Example(ids, tuple(trained for tokens, trained in encoded for _ in tokens), tag="drill")
