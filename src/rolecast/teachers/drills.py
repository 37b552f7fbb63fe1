"""Reading drills: invented facts, then the same facts again in another order.

To say a fact again, a model must find it by relation and by both words of the name. A role's turn gives it one such
chance among tokens that are easy to predict; a drill gives one per sentence, so that looking up is learned much sooner.
"""

from __future__ import annotations

import random

from rolecast.rollout.render import Renderer
from rolecast.types import Example
from rolecast.world.grammar import RELATIONS, Fact
from rolecast.world.names import SYLLABLES, draw_name

FACTS = 5
WORDS = 8  # syllables that subjects are built of: few, so that names share words as a search engine's hits do
KINDS = 4  # relations in play


def draw_drill(renderer: Renderer, rng: random.Random) -> Example:
    relations = rng.sample(list(RELATIONS), KINDS)
    words = rng.sample(SYLLABLES, WORDS)
    facts: dict[tuple[str, str], Fact] = {}
    while len(facts) < FACTS:
        subject, relation = f"{rng.choice(words)} {rng.choice(words)}", rng.choice(relations)
        facts.setdefault((subject, relation), Fact(subject, relation, draw_name(rng)))
    sentences = [fact.sentence for fact in facts.values()]
    read = renderer.encode("".join(f" {sentence}" for sentence in sentences))
    rng.shuffle(sentences)
    said = renderer.encode("".join(f" {sentence}" for sentence in sentences))
    return Example(read + said, (False,) * len(read) + (True,) * len(said), tag="drill")
