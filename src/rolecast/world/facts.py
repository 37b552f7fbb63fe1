"""The facts world: real countries, capitals, currencies, neighbours and cities, from the tables in `rolecast.world.tables`.

Countries are dealt to splits, with their cities, so no country that a question of one split asks about, compares or passes
through occurs in a question of another. What countries share cannot be disjoint: a currency, a continent or a time zone may
be an answer in every split. A model may have read all of this before: the world tests reading and search, not ignorance.

Relations keep one object per subject, so a chain passes through "the neighbour" of a country only where it has exactly one.
The corpus states every border, one sentence a neighbour and direction, and intersections ask for them.
"""

from __future__ import annotations

import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, permutations, zip_longest

from rolecast.errors import InputError
from rolecast.seeding import stream
from rolecast.types import Passage, question_id
from rolecast.world.counterfactual import World
from rolecast.world.grammar import Fact, chain_question
from rolecast.world.graph import Graph
from rolecast.world.questions import Draft, draft_comparison, draft_intersection
from rolecast.world.tables import rows

DATASET = "facts"
FACT_RELATIONS: dict[str, tuple[str, str]] = {  # relation: (type of the subject, type of the object)
    "capital": ("country", "city"),
    "currency": ("country", "currency"),
    "continent": ("country", "continent"),
    "neighbour": ("country", "country"),
    "country": ("city", "country"),
    "timezone": ("city", "timezone"),
}
COMPARED = ("currency", "continent", "country")  # two names of time zones need not differ in what the clock shows
MIN_SHARE = 0.15  # of the countries, for a split that asks few questions: fewer countries leave too few distinct ones
FINDABLE = 4  # passages that may hold both words of a query: a search that shows five finds what it asks for
_SLOTS = tuple(  # (type, hops): equal parts of 1 to 4 facts; of those with two a third each are of one type
    slot for two in ("chain", "comparison", "intersection") for slot in (("chain", 1), (two, 2), ("chain", 3), ("chain", 4))
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the tables say. `home` is the country of every country and city."""

    graph: Graph  # one object per relation
    borders: tuple[Fact, ...]  # every border, in both directions
    home: dict[str, str]
    subjects: dict[tuple[str, str], set[str]]  # all that are stated to have an object, by (relation, object)
    having: dict[tuple[str, str], set[str]]  # and those that have it beside others, which no passage states

    @property
    def all(self) -> list[Fact]:
        """Every fact once: the one border of a country is in the graph too."""
        return list(dict.fromkeys((*self.graph.facts, *self.borders)))

    def countries_of(self, facts: Iterable[Fact]) -> set[str]:
        return {self.home[name] for fact in facts for name in (fact.subject, fact.object) if name in self.home}


@cache
def load_facts() -> Facts:
    graph = Graph()
    countries, cities = rows("countries"), rows("cities")
    for row in countries:
        for relation in ("continent", "currency", "capital"):
            if row[relation]:
                graph.add(Fact(row["country"], relation, row[relation]))
    for row in cities:
        graph.add(Fact(row["city"], "country", row["country"]))
        if row["timezone"]:
            graph.add(Fact(row["city"], "timezone", row["timezone"]))
    pairs = [(row["first"], row["second"]) for row in rows("neighbours")]
    borders = tuple(Fact(a, "neighbour", b) for first, second in pairs for a, b in ((first, second), (second, first)))
    degree = Counter(border.subject for border in borders)
    for border in borders:
        if degree[border.subject] == 1:
            graph.add(border)
    home = {row["country"]: row["country"] for row in countries} | {row["city"]: row["country"] for row in cities}
    subjects: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for fact in (*graph.facts, *borders):
        subjects[fact.relation, fact.object].add(fact.subject)
    having = {key: set(names) for key, names in subjects.items()}
    for row in countries:
        for tender in row["tender"].split("; "):
            having.setdefault(("currency", tender), set()).add(row["country"])
    return Facts(graph, borders, home, dict(subjects), having)


def build_facts_world(seed: int, questions: dict[str, int]) -> World:
    """`questions` per split, interleaved by the number of facts they need; kinds that run out are asked less often.

    All passages, of all splits, are in one corpus, whatever the splits are. `World.entities` counts countries and cities.
    """
    facts = load_facts()
    members = _deal_countries(facts, questions, stream(seed, DATASET, "deal"))
    drafts = {
        split: _draw_questions(facts, members[split], split, count, stream(seed, DATASET, "questions", split))
        for split, count in questions.items()
    }
    corpus = facts.all
    stream(seed, DATASET, "order").shuffle(corpus)
    ids = {fact: f"p{place:06d}" for place, fact in enumerate(corpus)}
    return World(
        [Passage(ids[fact], fact.subject, fact.sentence) for fact in corpus],
        {
            split: [draft.question(question_id(f"{DATASET}-{seed}", split, row), ids.__getitem__) for row, draft in enumerate(kept)]
            for split, kept in drafts.items()
        },
        {split: sum(home in members[split] for home in facts.home.values()) for split in questions},
    )


def _deal_countries(facts: Facts, questions: dict[str, int], rng: random.Random) -> dict[str, set[str]]:
    """Countries per split, in proportion to its questions. A country and its only neighbour go together, so that chains pass."""
    group: dict[str, set[str]] = {country: {country} for country in sorted(set(facts.home.values()))}
    for fact in facts.graph.facts:
        if fact.relation == "neighbour" and group[fact.subject] is not group[fact.object]:
            group[fact.subject] |= group[fact.object]
            for country in group[fact.object]:
                group[country] = group[fact.subject]
    groups = list({id(g): sorted(g) for g in group.values()}.values())
    rng.shuffle(groups)
    share = {split: max(count / max(1, sum(questions.values())), MIN_SHARE) for split, count in questions.items()}
    members: dict[str, set[str]] = {split: set() for split in questions}
    starts = Counter(country for name, country in facts.home.items() if facts.graph.object_of("neighbour", country) and name != country)
    weight: Counter[str] = Counter()
    for countries in (g for g in groups if len(g) > 1):  # first those that the longest chains pass, by the number of such chains
        split = min(questions, key=lambda s: weight[s] / share[s])
        weight[split] += sum(starts[country] for country in countries)
        members[split].update(countries)
    for countries in (g for g in groups if len(g) == 1):
        members[min(questions, key=lambda s: len(members[s]) / share[s])].update(countries)
    return members


def _draw_questions(facts: Facts, members: set[str], split: str, count: int, rng: random.Random) -> list[Draft]:
    graph = Graph(fact for fact in facts.graph.facts if facts.countries_of([fact]) <= members)
    pools: dict[tuple[str, int], Iterator[Draft]] = {("chain", hops): iter(_chains(graph, hops, rng)) for hops in range(1, 5)}
    pools["comparison", 2] = _comparisons(graph, rng)
    pools["intersection", 2] = iter(_intersections(facts, members, rng))
    drafts: list[Draft] = []
    for slot in cycle(_SLOTS):
        if len(drafts) == count or not pools:
            break
        draft = next(pools[slot], None) if slot in pools else None
        if draft is not None:
            drafts.append(replace(draft, answers=_spellings(draft.answers)))
        else:
            pools.pop(slot, None)
    if len(drafts) < count:
        raise InputError(f"the facts world has {len(drafts)} distinct questions for {split}: ask for at most that many, not {count}")
    return drafts


def _chains(graph: Graph, hops: int, rng: random.Random) -> list[Draft]:
    """All chains of `hops` facts, the paths of relations in turn: there are far more cities than countries."""
    by_path: defaultdict[tuple[str, ...], list[Draft]] = defaultdict(list)
    for subject in dict.fromkeys(fact.subject for fact in graph.facts):
        for walk in _walks(graph, subject, hops):
            path = tuple(fact.relation for fact in walk)
            text = chain_question(path, subject, FACT_RELATIONS)
            by_path[path].append(Draft(text, (walk[-1].object,), tuple((fact, fact.query) for fact in walk), "chain"))
    return _in_turn(by_path.values(), rng)


def _walks(graph: Graph, subject: str, hops: int, before: tuple[Fact, ...] = ()) -> Iterator[tuple[Fact, ...]]:
    """Walks that take no relation twice and meet no entity twice, as in `draft_chain`."""
    if not hops:
        yield before
        return
    seen = {subject, *(fact.subject for fact in before)}
    used = {fact.relation for fact in before}
    for fact in graph.about(subject):
        if fact.relation not in used and fact.object not in seen:
            yield from _walks(graph, fact.object, hops - 1, (*before, fact))


def _comparisons(graph: Graph, rng: random.Random) -> Iterator[Draft]:
    """Pairs of subjects, with the same object and with different objects in turn: at most one pair a fact, or pairs swamp the rest."""
    of = {relation: [fact for fact in graph.facts if fact.relation == relation] for relation in COMPARED}
    relations = [relation for relation in COMPARED if of[relation]]
    asked: set[frozenset[Fact]] = set()
    for _ in range(4 * len(graph.facts) if relations else 0):  # draws, of which some give no new pair
        first = rng.choice(of[rng.choice(relations)])
        same = len(asked) % 2 == 0
        second = rng.choice(graph.subjects_of(first.relation, first.object) if same else of[first.relation])
        pair = frozenset({first, second})
        if len(pair) == 2 and (first.object == second.object) is same and pair not in asked and len(asked) < len(graph.facts):
            asked.add(pair)
            yield draft_comparison(first, second)


def _intersections(facts: Facts, members: set[str], rng: random.Random) -> list[Draft]:
    """Countries by two objects: the first is looked up, then what was found is asked for the second.

    Those of which neither object suffices come first: there are few, as most objects are one country's or too many countries'.
    Then come those of which one does, the pairs of relations in turn.
    """
    needed: list[Draft] = []
    others: defaultdict[tuple[str, str], list[Draft]] = defaultdict(list)
    for country in sorted(members):
        known = [fact for fact in facts.graph.about(country) if fact.relation != "neighbour"]
        known += [border for border in facts.borders if border.subject == country and border.object in members]
        asked: set[frozenset[Fact]] = set()
        for first, second in permutations(known, 2):
            having = [facts.having[fact.relation, fact.object] for fact in (first, second)]
            query = _second_query(facts, second)
            if query is None or not _findable(facts, first) or having[0] & having[1] != {country} or {first, second} in asked:
                continue
            asked.add(frozenset({first, second}))
            draft = replace(draft_intersection("country", first, second), facts=((first, first.inverse_query), (second, query)))
            (needed if min(map(len, having)) > 1 else others[first.relation, second.relation]).append(draft)
    rng.shuffle(needed)
    return needed + _in_turn(others.values(), rng)


def _in_turn(kinds: Iterable[list[Draft]], rng: random.Random) -> list[Draft]:
    """One of each kind after the other, in random order within a kind; kinds that run out are left out."""
    shuffled = [rng.sample(drafts, len(drafts)) for drafts in kinds]
    return [draft for row in zip_longest(*shuffled) for draft in row if draft is not None]


def _findable(facts: Facts, fact: Fact) -> bool:
    """Whether a search for the object shows every subject. A border is stated from both sides."""
    stated = len(facts.subjects[fact.relation, fact.object])
    return (2 * stated if fact.relation == "neighbour" else stated) <= FINDABLE


def _second_query(facts: Facts, fact: Fact) -> str | None:
    """Asks the found country for its object; one neighbour of many cannot be asked for so."""
    if fact.relation != "neighbour" or _findable(facts, Fact(fact.object, "neighbour", fact.subject)):
        return fact.query
    return fact.inverse_query if _findable(facts, fact) else None


def _spellings(answers: Sequence[str]) -> tuple[str, ...]:
    """Each answer as the tables spell it, and with plain letters."""
    quotes = str.maketrans("\u2018\u2019\u02bb", "'''")
    plain = ("".join(c for c in unicodedata.normalize("NFKD", a.translate(quotes)) if not unicodedata.combining(c)) for a in answers)
    return tuple(dict.fromkeys((*answers, *plain)))
