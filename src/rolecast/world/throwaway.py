"""Throw-away worlds for supervised examples: facts that are drawn for one episode and never seen again.

A model that memorises facts cannot gain from them, so it learns to read and copy. The synthetic retriever answers with
passages shaped like the real index's: the same k, the same kinds of distractors, the same order half of the time, and
misses. The other half is in random order: where the asked-for passage comes first four times out of five, a small model
learns to take the first and never learns to read. The shape's constants were measured with BM25 on the default world
(gold sub-queries of the test split).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rolecast.types import Passage, Question
from rolecast.world.grammar import RELATIONS, RELATIONS_OF, TYPES, Fact
from rolecast.world.graph import Graph
from rolecast.world.names import SYLLABLES, draw_name, near_name
from rolecast.world.questions import RelationsOf, draft_chain, draft_comparison, draft_intersection

MISS = 0.02  # a query whose passage is not among the k
GOLD_RANK = (0.79, 0.16, 0.04, 0.01)  # place of the asked-for passage where it is found
SHUFFLED = 0.5  # share of results in random order
SAME_RELATION = 0.35  # share of distractors with the relation asked for
_FORWARD = re.compile(r"^(\w+) of (\w+ \w+)$")
_INVERSE = re.compile(r"^(\w+) is (\w+ \w+)$")
_REPHRASED = re.compile(r"^(\w+ \w+)( as)? (\w+)$")


class ThrowawayWorld:
    """One question and the facts it needs; other facts come into being when a query asks for them."""

    def __init__(self, rng: random.Random, hops: int, kind: str) -> None:
        self._rng = rng
        self.graph = Graph()
        self.types: dict[str, str] = {}
        self.question: Question = self._draw_question(hops, kind)
        self._shown: dict[str, str] = {}

    def _entity(self, type: str) -> str:
        """A new name, close to one already in use half of the time."""
        while True:
            known = list(self.types)
            name = near_name(self._rng.choice(known), self._rng) if known and self._rng.random() < 0.3 else draw_name(self._rng)
            if name not in self.types:
                self.types[name] = type
                return name

    def _fact(self, subject: str, relation: str, obj: str | None = None) -> Fact:
        known = self.graph.object_of(relation, subject)
        return known or self.graph.add(Fact(subject, relation, obj or self._entity(RELATIONS[relation][1])))

    def _draw_question(self, hops: int, kind: str) -> Question:
        rng = self._rng
        if kind == "chain":
            subject = at = self._entity(rng.choice(TYPES))
            relations: list[str] = []
            for _ in range(hops):
                relation = rng.choice([r for r in RELATIONS_OF[self.types[at]] if r not in relations])
                at = self._fact(at, relation).object
                relations.append(relation)
            draft = None
            while draft is None:
                draft = draft_chain(self.graph, subject, hops, rng, RelationsOf(self.types))
        elif kind == "comparison":
            relation = rng.choice(list(RELATIONS))
            first = self._fact(self._entity(RELATIONS[relation][0]), relation)
            same = first.object if rng.random() < 0.5 else None
            draft = draft_comparison(first, self._fact(self._entity(RELATIONS[relation][0]), relation, same))
        else:
            subject = self._entity(rng.choice(TYPES))
            pair = [self._fact(subject, relation) for relation in rng.sample(RELATIONS_OF[self.types[subject]], 2)]
            for fact in pair:
                if rng.random() < 0.5:
                    self._fact(self._entity(self.types[subject]), fact.relation, fact.object)
            draft = draft_intersection(self.types[subject], *pair)
        return draft.question("throwaway", lambda fact: fact.sentence)

    def passages(self, query: str, k: int) -> list[Passage]:
        """What the real index would show for `query`, at most `k` passages."""
        rng = self._rng
        asked, entity = self._asked_for(query)
        if entity is None:
            return []
        asked = [] if rng.random() < MISS else asked
        shown = [fact.sentence for fact in asked]
        relation = asked[0].relation if asked else rng.choice(list(RELATIONS))
        while len(shown) < k:
            sentence = self._distractor(entity, relation).sentence
            if sentence not in shown:
                place = len(shown) if rng.random() < 0.9 else rng.randrange(len(shown) + 1)
                shown.insert(place, sentence)
        if rng.random() < SHUFFLED:
            rng.shuffle(shown)
        elif len(asked) == 1:
            place = rng.choices(range(len(GOLD_RANK)), GOLD_RANK)[0]
            shown.remove(asked[0].sentence)
            shown.insert(min(place, k - 1), asked[0].sentence)
        return [Passage(sentence, "", sentence) for sentence in shown[:k]]

    def _asked_for(self, query: str) -> tuple[list[Fact], str | None]:
        for pattern, relation_at, entity_at in ((_FORWARD, 1, 2), (_INVERSE, 1, 2), (_REPHRASED, 3, 1)):
            match = pattern.match(query)
            if match and match[relation_at] in RELATIONS:
                relation, entity = match[relation_at], match[entity_at]
                inverse = pattern is _INVERSE or (pattern is _REPHRASED and match[2] is not None)
                if inverse:
                    return list(self.graph.subjects_of(relation, entity)), entity
                return ([self._fact(entity, relation)] if entity in self.types else []), entity
        return [], None

    def _distractor(self, entity: str, relation: str) -> Fact:
        """Same entity with another relation, the entity as an object, or a near-name with the same relation."""
        rng = self._rng
        draw = rng.random()
        if draw < SAME_RELATION:
            if rng.random() < 0.5:
                return Fact(draw_name(rng), relation, entity)
            # The words of a name in the other order rank as high as the name itself.
            return Fact(" ".join(reversed(entity.split())) if rng.random() < 0.3 else near_name(entity, rng), relation, draw_name(rng))
        if draw < 0.65:
            kind = self.types.get(entity, "person")
            others = [r for r in RELATIONS_OF[kind] if r != relation]
            return self._fact(entity, rng.choice(others)) if entity in self.types else Fact(entity, rng.choice(others), draw_name(rng))
        if draw < 0.9:
            return Fact(draw_name(rng), rng.choice(list(RELATIONS)), entity)
        first, second = entity.split()
        return Fact(f"{first} {rng.choice(SYLLABLES)}", rng.choice(list(RELATIONS)), f"{second} {rng.choice(SYLLABLES)}")


class ThrowawayRetriever:
    """`Retriever` over one throw-away world."""

    def __init__(self, world: ThrowawayWorld) -> None:
        self._world = world

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self._world.passages(query, k) for query in queries]

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        return [Passage(id, "", id) for id in ids]

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise NotImplementedError("a throw-away world has no encoder; score semantic rewards on the indexed world")


KINDS = (("chain", 1, 0.16), ("chain", 2, 0.16), ("comparison", 2, 0.09), ("intersection", 2, 0.09), ("chain", 3, 0.25), ("chain", 4, 0.25))


def draw_throwaway(rng: random.Random) -> ThrowawayWorld:
    kind, hops, _ = rng.choices(KINDS, [share for *_, share in KINDS])[0]
    return ThrowawayWorld(rng, hops, kind)
