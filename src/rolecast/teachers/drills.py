"""Drills: rows that practise one skill many times over, before the teacher's turns ask for it once among easy tokens.

A reading drill states invented facts and says them again in another order: to do so, a model must find each by its
relation and both words of the name, or, where the fact's inverse query comes first, by relation and object. A comparing
drill lists names and says whether they are the same, or which of them came twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rolecast.methods.tags import tagged
from rolecast.rollout.render import Renderer
from rolecast.types import Example
from rolecast.world.grammar import RELATIONS, Fact
from rolecast.world.names import SYLLABLES, draw_name

FACTS = 5
WORDS = 8  # syllables that subjects are built of: few, so that names share words as a search engine's hits do
KINDS = 4  # relations in play
INVERSE = 0.3  # share of facts that are said after their inverse query
ROUNDS = 12  # comparisons in a drill


def draw_mixed(renderer: Renderer, rng: random.Random) -> Example:
    draw = rng.choices((draw_reading, draw_comparing, draw_intersecting), (0.75, 0.125, 0.125))[0]
    return draw(renderer, rng)


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


def draw_comparing(renderer: Renderer, rng: random.Random) -> Example:
    """Two names, then whether they are the same. Names that share one word are left out: they hide the skill for long."""

    def draw() -> tuple[list[str], str]:
        first = draw_name(rng)
        second = first if rng.random() < 0.5 else draw_name(rng)
        return [first, second], "yes" if first == second else "no"

    return _rounds(renderer, "Do", draw)


def draw_intersecting(renderer: Renderer, rng: random.Random) -> Example:
    """Two results of one or two names each, then the name that they have in common."""

    def draw() -> tuple[list[str], str]:
        common = draw_name(rng)
        results = [[common, *(draw_name(rng) for _ in range(rng.randrange(2)))] for _ in range(2)]
        for result in results:
            rng.shuffle(result)
        return results[0] + results[1], common

    return _rounds(renderer, "Which", draw)


def _rounds(renderer: Renderer, question: str, draw: Callable[[], tuple[list[str], str]]) -> Example:
    """Rounds in the form of an answerer's reply, after the first word of the question that they answer."""
    pieces = [(f" {question}", False)]
    for _ in range(ROUNDS):
        names, answer = draw()
        pieces += [(tagged("think", " and ".join(names)), False), (tagged("answer", answer), True)]
    return _row(renderer, pieces)


def _row(renderer: Renderer, pieces: Sequence[tuple[str, bool]]) -> Example:
    """Texts with whether they are trained: what is read is not, nor are names that nothing foretells."""
    encoded = [(renderer.encode(text), trained) for text, trained in pieces]
    ids = tuple(token for tokens, _ in encoded for token in tokens)
    return Example(ids, tuple(trained for tokens, trained in encoded for _ in tokens), tag="drill")
