"""The counterfactual world: a corpus of invented facts, and questions that no model can have read the answers of.

Entities are dealt to splits before any fact is drawn, and facts never cross splits, so no subject, bridge or answer of a
test question occurs in a training chain. All passages, of all splits, are in one corpus.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from rolecast.errors import InputError
from rolecast.seeding import stream
from rolecast.types import Passage, Question, question_id
from rolecast.world.grammar import RELATIONS, RELATIONS_OF, TYPES, Fact
from rolecast.world.graph import Graph
from rolecast.world.names import SYLLABLES, draw_names
from rolecast.world.questions import (
    Draft,
    RelationsOf,
    distinct,
    draft_chain,
    draft_comparison,
    draft_intersection,
)

DATASET = "counterfactual"
SMALLEST = 2 * len(TYPES)  # entities of a split: two of each type, since nothing is its own mentor or twin
NAMES = int(0.9 * len(SYLLABLES) ** 2)  # of those that there are: drawing the very last ones would take long
DrawQuestion = Callable[[Graph, dict[str, str], int, random.Random], Draft | None]  # one try for the question of this number


@dataclass(frozen=True, slots=True)
class World:
    passages: list[Passage]
    questions: dict[str, list[Question]]  # by split
    entities: dict[str, int] = field(default_factory=dict)  # by split


def build_world(
    seed: int, entities: dict[str, int], questions: dict[str, int], dataset: str = DATASET, draw: DrawQuestion | None = None
) -> World:
    """`entities` and `questions` per split. Every entity has three facts, so the corpus has three times as many passages.

    Questions come in equal parts of 1 to 4 facts; of those with two facts a third each are chains, comparisons and
    intersections; or they are what `draw` makes. Raises InputError where a split is too small for what it is asked.
    """
    check_sizes(entities, questions)
    taken: set[str] = set()
    facts: list[Fact] = []
    drafts: dict[str, list[Draft]] = {}
    for split, count in entities.items():
        types = _deal_types(draw_names(count, stream(seed, "names", split), taken=taken))
        graph = _draw_facts(types, stream(seed, "facts", split))
        facts += graph.facts
        drafts[split] = _draw_questions(graph, types, split, questions[split], stream(seed, "questions", split), draw or _draw_question)
    order = list(range(len(facts)))
    stream(seed, "order").shuffle(order)
    ids = {facts[index]: f"p{place:06d}" for place, index in enumerate(order)}
    passages = [Passage(ids[facts[index]], facts[index].subject, facts[index].sentence) for index in order]
    return World(
        passages,
        {
            split: [draft.question(question_id(f"{dataset}-{seed}", split, row), ids.__getitem__) for row, draft in enumerate(rows)]
            for split, rows in drafts.items()
        },
        dict(entities),
    )


def check_sizes(entities: dict[str, int], questions: dict[str, int]) -> None:
    """Raises InputError for splits that no invented world can have."""
    if entities.keys() != questions.keys():
        named = [", ".join(splits) or "none" for splits in (entities, questions)]
        raise InputError(f"a world's entities are of the splits {named[0]}, its questions of {named[1]}; give both for every split")
    for split, count in entities.items():
        if count < SMALLEST and (count or questions[split]):
            raise InputError(f"split {split} of the world has {count} entities; give it at least {SMALLEST}, or none and no questions")
    if sum(entities.values()) > NAMES:
        raise InputError(f"a world of {sum(entities.values())} entities runs out of names; ask for at most {NAMES} in all splits together")


def _deal_types(names: list[str]) -> dict[str, str]:
    return {name: TYPES[index % len(TYPES)] for index, name in enumerate(names)}


def _draw_facts(types: dict[str, str], rng: random.Random) -> Graph:
    """One object for every relation of every entity, none of them the entity itself."""
    by_type = {t: [name for name, kind in types.items() if kind == t] for t in TYPES}
    graph = Graph()
    for subject, kind in types.items():
        for relation in RELATIONS_OF[kind]:
            obj = subject
            while obj == subject:
                obj = rng.choice(by_type[RELATIONS[relation][1]])
            graph.add(Fact(subject, relation, obj))
    return graph


def _draw_questions(
    graph: Graph, types: dict[str, str], split: str, count: int, rng: random.Random, draw: DrawQuestion
) -> list[Draft]:  # fmt: skip
    return distinct(count, lambda number: draw(graph, types, number, rng), len(types), split)


def _draw_question(graph: Graph, types: dict[str, str], number: int, rng: random.Random) -> Draft | None:
    """Interleaved by the number of facts they need."""
    hops = number % 4 + 1
    kind = ("chain", "comparison", "intersection")[number // 4 % 3] if hops == 2 else "chain"
    if kind == "chain":
        return draft_chain(graph, rng.choice(list(types)), hops, rng, RelationsOf(types))
    if kind == "comparison":
        return _comparison(graph, rng, same=number // 12 % 2 == 0)
    return _intersection(graph, rng.choice(list(types)), types, rng)


def _comparison(graph: Graph, rng: random.Random, same: bool) -> Draft | None:
    first = rng.choice(graph.facts)
    if same:
        others = [f for f in graph.subjects_of(first.relation, first.object) if f != first]
        return draft_comparison(first, rng.choice(others)) if others else None
    second = rng.choice(graph.facts)
    if second.relation != first.relation or second.object == first.object:
        return None
    return draft_comparison(first, second)


def _intersection(graph: Graph, subject: str, types: dict[str, str], rng: random.Random) -> Draft | None:
    """Only objects with at most two subjects each, and one entity in common, so that the answer is unique and findable."""
    first, second = rng.sample(graph.about(subject), 2)
    subjects = [{f.subject for f in graph.subjects_of(fact.relation, fact.object)} for fact in (first, second)]
    if any(len(s) > 2 for s in subjects) or len(subjects[0] & subjects[1]) != 1:
        return None
    return draft_intersection(types[subject], first, second)
