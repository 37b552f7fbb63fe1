"""Throw-away worlds for supervised examples: facts that are drawn for one episode and never seen again.

A model that memorises facts cannot gain from them, so it learns to read and copy. The synthetic retriever answers with
passages shaped like the real index's (measured with BM25 on the default world): first the passage asked for, then what
else is said of the entity, then mentions of it and near-names; an inverse query's passages come after the entity's own.
Some results are in random order and some miss: where the passage asked for always comes first, a small model learns to
take the first and never learns to read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rolecast.ports import IndexInfo
from rolecast.types import Passage, Question
from rolecast.world.grammar import RELATIONS, RELATIONS_OF, TYPES, Fact, forward_query, inverse_query, names
from rolecast.world.graph import Graph
from rolecast.world.names import SYLLABLES, draw_name, near_name
from rolecast.world.questions import Draft, RelationsOf, draft_chain, draft_comparison, draft_intersection
from rolecast.world.reports import LENGTHS, draft_fork, draft_pair, with_rubric
from rolecast.world.throwaway_crowded import draw_crowded

COUNTERFACTUAL, CROWDED, REPORTS = "counterfactual", "crowded", "reports"  # kinds of a run's world
MISS = 0.02  # share of queries whose passage is not among the k
SHUFFLED = 0.35  # share of results in random order
INTRUDER = 0.17  # share of results in which a near-name with the same relation outranks the entity's other facts
_FORWARD = re.compile(r"^(\w+) of (\w+ \w+)$")
_INVERSE = re.compile(r"^(\w+) is (\w+ \w+)$")
_REPHRASED = re.compile(r"^(\w+ \w+)( as)? (\w+)$")


class ThrowawayWorld:
    """One question and the facts it needs; other facts come into being when a query asks for them."""

    def __init__(self, rng: random.Random, hops: int, kind: str) -> None:
        self._rng = rng
        self.graph = Graph()
        self.types: dict[str, str] = {}
        self._said: dict[tuple[str, str], Fact] = {}  # facts of no entity in the graph, by subject and relation
        self.question: Question = self._draw_question(hops, kind)

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
        if known is None and (said := self._said.get((subject, relation))) is not None:
            known = self.graph.add(said)
            self.types.setdefault(said.object, RELATIONS[relation][1])
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
        elif kind in ("pair", "fork"):
            draft = self._draw_report(hops, kind)
        else:
            subject = self._entity(rng.choice(TYPES))
            pair = [self._fact(subject, relation) for relation in rng.sample(RELATIONS_OF[self.types[subject]], 2)]
            for fact in pair:
                if rng.random() < 0.5:
                    self._fact(self._entity(self.types[subject]), fact.relation, fact.object)
            draft = draft_intersection(self.types[subject], *pair)
        return draft.question("throwaway", lambda fact: fact.sentence)

    def _draw_report(self, hops: int, kind: str) -> Draft:
        rng = self._rng
        if kind == "pair":
            return draft_pair(*(self._walk(length) for length in rng.sample(LENGTHS[hops], 2)))
        [lead] = self._walk(1)
        return draft_fork(lead, *(self._fact(lead.object, r) for r in rng.sample(RELATIONS_OF[self.types[lead.object]], 2)))

    def _walk(self, hops: int) -> list[Fact]:
        """A chain of new entities, no relation twice."""
        at = self._entity(self._rng.choice(TYPES))
        facts: list[Fact] = []
        for _ in range(hops):
            options = [r for r in RELATIONS_OF[self.types[at]] if r not in [fact.relation for fact in facts]]
            facts.append(self._fact(at, self._rng.choice(options)))
            at = facts[-1].object
        return facts

    def passages(self, query: str, k: int) -> list[Passage]:
        """What the real index would show for `query`, at most `k` passages."""
        asked, entity, inverse = self._asked_for(query)
        shown = self._of_question(query, k) if entity is None else self._ranked(asked, entity, inverse, k)
        if self._rng.random() < SHUFFLED:
            self._rng.shuffle(shown)
        return [Passage(sentence, "", sentence) for sentence in shown]

    def _ranked(self, asked: Sequence[Fact], entity: str, inverse: bool, k: int) -> list[str]:
        """The result of a query for the facts `asked` of `entity`, best first."""
        rng = self._rng
        missed = rng.random() < MISS
        relation = asked[0].relation if asked else rng.choice(list(RELATIONS))
        own = [fact for fact in self._own_facts(entity) if fact not in asked]
        ranked = [*own, *asked] if inverse else [*asked, *own]
        if not inverse and rng.random() < INTRUDER:
            ranked.insert(1, self._invented(self._near, entity, relation))
        while len(ranked) < k + len(asked):
            ranked.append(self._invented(self._mention, entity, relation))
        return list(dict.fromkeys(fact.sentence for fact in ranked if not (missed and fact in asked)))[:k]

    def _of_question(self, text: str, k: int) -> list[str]:
        """The result of a question in full: its words match whatever joins a relation and an entity that it names."""
        queries = []
        for entity in [name for name in self.types if names(text, name)]:
            relations = [relation for relation in RELATIONS if names(text, relation)]
            queries += [forward_query(r, entity) for r in relations if RELATIONS[r][0] == self.types[entity]]
            queries += [inverse_query(r, entity) for r in relations if RELATIONS[r][1] == self.types[entity]]
        results = [self._ranked(asked, entity, inverse, k) for asked, entity, inverse in map(self._asked_for, queries) if entity]
        return list(dict.fromkeys(sentence for rank in zip_longest(*results) for sentence in rank if sentence))[:k]

    def _asked_for(self, query: str) -> tuple[list[Fact], str | None, bool]:
        """The facts that answer the query, the entity that it names, and whether it asks for subjects."""
        for pattern, relation_at, entity_at in ((_FORWARD, 1, 2), (_INVERSE, 1, 2), (_REPHRASED, 3, 1)):
            match = pattern.match(query)
            if match and match[relation_at] in RELATIONS:
                relation, entity = match[relation_at], match[entity_at]
                inverse = pattern is _INVERSE or (pattern is _REPHRASED and match[2] is not None)
                if inverse:
                    return list(self.graph.subjects_of(relation, entity)), entity, True
                return ([self._fact(entity, relation)] if entity in self.types else []), entity, False
        return [], None, False

    def _own_facts(self, entity: str) -> list[Fact]:
        """Everything that is said of the entity, in random order."""
        if entity not in self.types:
            return []
        facts = [self._fact(entity, relation) for relation in RELATIONS_OF[self.types[entity]]]
        self._rng.shuffle(facts)
        return facts

    def _invented(self, draw: Callable[[str, str], Fact], entity: str, relation: str) -> Fact:
        """A distractor. What was said of its subject before is not contradicted, nor is it contradicted later."""
        while True:
            fact = draw(entity, relation)
            known = self.graph.object_of(fact.relation, fact.subject) or self._said.setdefault((fact.subject, fact.relation), fact)
            if known == fact:
                return fact

    def _near(self, entity: str, relation: str) -> Fact:
        """The relation asked for, of a name that shares words with the entity's."""
        rng = self._rng
        first, second = entity.split()
        if first != second and rng.random() < 0.3:
            return Fact(f"{second} {first}", relation, draw_name(rng))
        return Fact(near_name(entity, rng), relation, f"{rng.choice(SYLLABLES)} {rng.choice((first, second))}")

    def _mention(self, entity: str, relation: str) -> Fact:
        """What fills the end of a result: the entity as an object, or near-names."""
        rng = self._rng
        draw = rng.random()
        if draw < 0.3:
            return Fact(draw_name(rng), rng.choice([r for r in RELATIONS if r != relation]), entity)
        if draw < 0.45:
            return Fact(draw_name(rng), relation, entity)
        if draw < 0.6:
            return self._near(entity, relation)
        return Fact(near_name(entity, rng), rng.choice(list(RELATIONS)), draw_name(rng))


class Throwaway(Protocol):
    """A world for one episode."""

    question: Question

    def passages(self, query: str, k: int) -> list[Passage]: ...


class ThrowawayRetriever:
    """`Retriever` over one throw-away world."""

    def __init__(self, world: Throwaway) -> None:
        self._world = world

    async def info(self) -> IndexInfo:
        return IndexInfo("throw-away")

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [self._world.passages(query, k) for query in queries]

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        return [Passage(id, "", id) for id in ids]

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise NotImplementedError("a throw-away world has no encoder; score semantic rewards on the indexed world")


# Shares of questions by type and number of facts. Those of reports have a rubric too.
REPORT_KINDS = (("chain", 1, 0.1), ("chain", 2, 0.2), ("pair", 2, 0.15), ("fork", 3, 0.2), ("pair", 3, 0.15), ("pair", 4, 0.2))
KINDS = (("chain", 1, 0.1), ("chain", 2, 0.1), ("comparison", 2, 0.2), ("intersection", 2, 0.24), ("chain", 3, 0.18), ("chain", 4, 0.18))


def draw_throwaway(rng: random.Random, world: str = COUNTERFACTUAL) -> Throwaway:
    """`world`: the kind that the episode's is to be like. Real facts cannot be thrown away: their episodes have invented ones."""
    if world == CROWDED:
        return draw_crowded(rng)
    kinds = REPORT_KINDS if world == REPORTS else KINDS
    kind, hops, _ = rng.choices(kinds, [share for *_, share in kinds])[0]
    drawn = ThrowawayWorld(rng, hops, kind)
    if world == REPORTS:
        drawn.question = with_rubric(drawn.question)
    return drawn
