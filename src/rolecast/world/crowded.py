"""The crowded world: invented facts among others that look like them, so that it matters what a team keeps, carries and leaves open.

- Many names have a mirrored twin of the same type: "Tan Brol" beside "Brol Tan", which a search by words cannot tell apart.
- A passage says two things of one entity or more, and often what they were before: "The mayor of Kel Dax was Vik Ot. The twin of Kel Dax
  is Hul Dram. The mayor of Kel Dax is Brol Tan."
- Some things are not said of an entity, or only what they were. A question that needs one of them has no answer in the corpus.
- Everything has a year, and some have a list of two persons, so that there is something to compare and to choose from.

Otherwise it is as the counterfactual world: entities are dealt to splits, facts never cross them, one corpus holds all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rolecast.rewards.text import ABSTENTION
from rolecast.seeding import stream
from rolecast.types import Passage, Question, question_id
from rolecast.world.counterfactual import World, check_sizes
from rolecast.world.grammar import AND, DATED, LISTED, RELATIONS, RELATIONS_OF, TYPES, YEARS, Fact, chain_question
from rolecast.world.graph import Graph
from rolecast.world.names import draw_names, mirrored
from rolecast.world.questions import Draft, RelationsOf, distinct, draft_chain, draft_choice, draft_earlier

DATASET = "crowded"
TWINS = 0.4  # probability that a new name comes with its mirror
OUTDATED = 0.4  # that a passage also says what was before
ABSENT = 0.1  # that what is so is not said
LISTS = 0.5  # that there is a list
SLOTS = (  # (type, facts): of 20 questions 10 are chains, 4 comparisons, 3 intersections, and 3 have no answer
    ("chain", 2), ("comparison", 2), ("chain", 4), ("unanswerable", 1), ("intersection", 3),
    ("chain", 3), ("comparison", 4), ("chain", 6), ("unanswerable", 2), ("chain", 4),
    ("chain", 2), ("intersection", 3), ("chain", 3), ("comparison", 2), ("chain", 6),
    ("unanswerable", 3), ("chain", 4), ("comparison", 4), ("chain", 2), ("intersection", 3),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Crowd:
    """Entities with their types, what is so of them, and the passages that say it."""

    types: dict[str, str]
    by_type: dict[str, list[str]]
    graph: Graph
    texts: list[str]
    place: dict[tuple[str, str], str]  # the text that says something of this relation and subject

    def text_of(self, fact: Fact) -> str:
        return self.place[fact.relation, fact.subject]


def build_crowded_world(seed: int, entities: dict[str, int], questions: dict[str, int]) -> World:
    """`entities` and `questions` per split. InputError where a split is too small for what it is asked."""
    check_sizes(entities, questions)
    taken: set[str] = set()
    crowds: dict[str, Crowd] = {}
    drafts: dict[str, list[Draft]] = {}
    for split, count in entities.items():
        types = draw_entities(count, stream(seed, DATASET, "names", split), taken)
        crowds[split] = draw_crowd(types, stream(seed, DATASET, "facts", split))
        drafts[split] = _draw_questions(crowds[split], split, questions[split], stream(seed, DATASET, "questions", split))
    texts = [text for crowd in crowds.values() for text in crowd.texts]
    stream(seed, DATASET, "order").shuffle(texts)
    ids = {text: f"p{place:06d}" for place, text in enumerate(texts)}

    def identified(split: str, row: int, draft: Draft) -> Question:
        return draft.question(question_id(f"{DATASET}-{seed}", split, row), lambda fact: ids[crowds[split].text_of(fact)])

    return World(
        [Passage(ids[text], "", text) for text in texts],
        {split: [identified(split, row, draft) for row, draft in enumerate(rows)] for split, rows in drafts.items()},
        dict(entities),
    )


def draw_entities(count: int, rng: random.Random, taken: set[str]) -> dict[str, str]:
    """`count` new names with their types, in equal parts but for twins, who are of one type. `taken` names are avoided and extended."""
    types: dict[str, str] = {}
    for turn, name in enumerate(draw_names(count, rng, taken=taken)):
        types[name] = TYPES[turn % len(TYPES)]
        twin = mirrored(name)
        if twin not in taken and rng.random() < TWINS:
            taken.add(twin)
            types[twin] = types[name]
    return dict(list(types.items())[:count])


def draw_crowd(types: dict[str, str], rng: random.Random) -> Crowd:
    """What is so of every entity, and two passages of each: about as much in one as in the other, in any order."""
    by_type = {kind: [name for name, of in types.items() if of == kind] for kind in TYPES}
    crowd = Crowd(types, by_type, Graph(), [], {})
    for subject, kind in types.items():
        relations = rng.sample(RELATIONS_OF[kind], len(RELATIONS_OF[kind]))
        for told in (relations[:2], [*relations[2:], DATED[kind], LISTED[kind]]):
            sentences = [sentence for relation in told for sentence in _say(subject, relation, by_type, crowd.graph, rng)]
            rng.shuffle(sentences)
            if sentences:
                crowd.texts.append(" ".join(sentences))
                crowd.place.update(dict.fromkeys(((relation, subject) for relation in told), crowd.texts[-1]))
    return crowd


def _say(subject: str, relation: str, by_type: dict[str, list[str]], graph: Graph, rng: random.Random) -> list[str]:
    """What is so, which then is in the graph too, and what was. Either may go unsaid."""
    if relation in DATED.values():
        return [graph.add(Fact(subject, relation, rng.choice(YEARS))).sentence]
    if relation in LISTED.values():
        others = [name for name in rng.sample(by_type["person"], min(3, len(by_type["person"]))) if name != subject]
        return [graph.add(Fact(subject, relation, AND.join(others[:2]))).sentence] if rng.random() < LISTS and len(others) > 1 else []
    now, before = (_other(subject, by_type[RELATIONS[relation][1]], rng) for _ in range(2))
    said = [] if rng.random() < ABSENT else [graph.add(Fact(subject, relation, now)).sentence]
    old = rng.random() < OUTDATED and before != now
    return [*said, Fact(subject, relation, before).outdated] if old else said


def _other(subject: str, names: list[str], rng: random.Random) -> str:
    obj = subject
    while obj == subject:
        obj = rng.choice(names)
    return obj


def _draw_questions(crowd: Crowd, split: str, count: int, rng: random.Random) -> list[Draft]:
    return distinct(count, lambda number: draw_question(crowd, *SLOTS[number % len(SLOTS)], rng), len(crowd.types), split)


def draw_question(crowd: Crowd, kind: str, facts: int, rng: random.Random) -> Draft | None:
    """One try."""
    if kind == "comparison":
        return _comparison(crowd, facts, rng)
    if kind == "intersection":
        return _intersection(crowd, rng)
    subject = rng.choice(crowd.by_type[rng.choice(TYPES)])
    if kind == "unanswerable":
        return _unanswerable(crowd, subject, facts, rng)
    return draft_chain(crowd.graph, subject, facts, rng, RelationsOf(crowd.types))


def _unanswerable(crowd: Crowd, subject: str, facts: int, rng: random.Random) -> Draft | None:
    """A chain that breaks at its last relation or before it, so that neither length nor end of the question tells."""
    walk: tuple[tuple[Fact, str], ...] = ()
    if facts > 1:
        draft = draft_chain(crowd.graph, subject, facts - 1, rng, RelationsOf(crowd.types))
        if draft is None:
            return None
        walk = draft.facts
    relations = [fact.relation for fact, _ in walk]
    at = walk[-1][0].object if walk else subject
    unsaid = [r for r in RELATIONS_OF[crowd.types[at]] if r not in relations and crowd.graph.object_of(r, at) is None]
    if not unsaid:
        return None
    missing = Fact(at, rng.choice(unsaid), "")
    relations.append(missing.relation)
    for _ in range(rng.randrange(3)):
        onward = [r for r in RELATIONS_OF[RELATIONS[relations[-1]][1]] if r not in relations]
        relations += rng.sample(onward, min(1, len(onward)))
    return Draft(chain_question(relations, subject), (ABSTENTION,), (*walk, (missing, missing.query)), "unanswerable")


def _comparison(crowd: Crowd, facts: int, rng: random.Random) -> Draft | None:
    """Of two entities that the question names, or of two that must be found first."""
    kind = rng.choice(TYPES)
    ways: list[tuple[Fact, ...]] = []
    for _ in range(2):
        leads: tuple[Fact, ...] = ()
        subject = rng.choice(crowd.by_type[kind])
        if facts > 2:
            lead = rng.choice(crowd.graph.facts)
            if lead.relation not in RELATIONS or RELATIONS[lead.relation][1] != kind:
                return None
            leads, subject = (lead,), lead.object
        date = crowd.graph.object_of(DATED[kind], subject)
        assert date is not None, "everything has a year"
        ways.append((*leads, date))
    return draft_earlier(*ways)


def _intersection(crowd: Crowd, rng: random.Random) -> Draft | None:
    """Which of the two on a list has some object."""
    subject = rng.choice(crowd.by_type[rng.choice(TYPES)])
    found = crowd.graph.object_of(LISTED[crowd.types[subject]], subject)
    if found is None:
        return None
    relation = rng.choice(RELATIONS_OF["person"])
    checks = [fact for name in found.object.split(AND) if (fact := crowd.graph.object_of(relation, name))]
    return draft_choice(found, checks, rng.choice(checks)) if len({fact.object for fact in checks}) == 2 else None
