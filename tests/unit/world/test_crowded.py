"""The crowded world, checked by brute force from its passages and the questions' own words."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from itertools import combinations

import pytest

from rolecast.errors import InputError
from rolecast.types import Question
from rolecast.world import crowded, names
from rolecast.world.counterfactual import World
from rolecast.world.crowded import SLOTS, build_crowded_world, draw_entities
from rolecast.world.grammar import DATED, RELATIONS, RELATIONS_OF, TYPES, YEARS, facts_in, sentences
from rolecast.world.names import mirrored
from tests.bounded import within

ENTITIES = {"train": 300, "dev": 90, "test": 120}
QUESTIONS = {"train": 240, "dev": 40, "test": 100}
SPLITS = tuple(ENTITIES)
STATED = re.compile(r"The (\w+) of (\w+ \w+) is (.+)\.")
ONCE = re.compile(r"The (\w+) of (\w+ \w+) was (\w+ \w+)\.")


@pytest.fixture(scope="module")
def world() -> World:
    return build_crowded_world(0, ENTITIES, QUESTIONS)


@pytest.fixture(scope="module")
def said(world: World) -> list[str]:
    return [sentence for p in world.passages for sentence in sentences(p.text)]


@pytest.fixture(scope="module")
def stated(said: list[str]) -> dict[tuple[str, str], str]:
    """Object by (relation, subject), read off the passages; what was does not count."""
    triples = [match.groups() for sentence in said if (match := STATED.fullmatch(sentence))]
    assert len(triples) == len({triple[:2] for triple in triples})
    return {(relation, subject): obj for relation, subject, obj in triples}


def follow(relations: list[str], subject: str, stated: dict[tuple[str, str], str]) -> str:
    at = subject
    for relation in relations:
        if (relation, at) not in stated:
            return "unknown"
        at = stated[relation, at]
    return at


def answers(text: str, stated: dict[tuple[str, str], str]) -> set[str]:
    """Every answer that the passages allow, from the question's words alone."""
    if match := re.fullmatch(r"(?:Who|What) is ((?:the \w+ of )+)(\w+ \w+)\?", text):
        return {follow(re.findall(r"the (\w+) of", match[1])[::-1], match[2], stated)}
    if match := re.fullmatch(r"Whose (\w+) is earlier, (.+) or (.+)\?", text):
        ways = [re.fullmatch(r"(?:the (\w+) of )?(\w+ \w+)", match[side]) for side in (2, 3)]
        names = [follow([way[1]] if way[1] else [], way[2], stated) for way in ways if way]
        years = [stated[match[1], name] for name in names]
        return {name for name, year in zip(names, years, strict=True) if year == min(years)}
    match = re.fullmatch(r"Who of the (\w+) of (\w+ \w+) has the (\w+) (\w+ \w+)\?", text)
    assert match, text
    return {name for name in stated[match[1], match[2]].split(" and ") if stated[match[3], name] == match[4]}


def questions(world: World) -> list[Question]:
    return [question for split in SPLITS for question in world.questions[split]]


def entities_of(question: Question) -> set[str]:
    named = {name for hop in question.gold.chain for name in (hop.subject, *hop.object.split(" and "))}
    return named - {*YEARS, ""}


def test_the_world_is_a_function_of_the_seed(world: World) -> None:
    assert build_crowded_world(0, ENTITIES, QUESTIONS) == world
    other = build_crowded_world(1, ENTITIES, QUESTIONS)
    assert {p.text for p in other.passages}.isdisjoint({p.text for p in world.passages})
    assert {q.id for q in questions(world)}.isdisjoint({q.id for q in questions(other)})


def test_a_split_does_not_depend_on_how_many_questions_others_ask(world: World) -> None:
    other = build_crowded_world(0, ENTITIES, {**QUESTIONS, "train": 20})
    assert [q.text for q in other.questions["test"]] == [q.text for q in world.questions["test"]]
    assert other.passages == world.passages


def test_every_answer_is_the_only_one(world: World, stated: dict[tuple[str, str], str]) -> None:
    for question in questions(world):
        assert answers(question.text, stated) == set(question.gold.answers), question.text


@pytest.mark.parametrize("split", SPLITS)
def test_types_come_in_the_order_of_the_slots(world: World, split: str) -> None:
    asked = world.questions[split]
    assert [(q.type, q.hops) for q in asked] == [SLOTS[row % len(SLOTS)] for row in range(QUESTIONS[split])]
    assert all(q.hops == len(q.gold.chain) for q in asked)


def test_the_slots_are_what_the_comment_says() -> None:
    assert Counter(kind for kind, _ in SLOTS) == {"chain": 10, "comparison": 4, "intersection": 3, "unanswerable": 3}


def test_questions_and_ids_are_distinct(world: World) -> None:
    asked = questions(world)
    assert len({q.id for q in asked}) == len({q.text for q in asked}) == len(asked)


def test_splits_share_no_entity_of_their_questions(world: World) -> None:
    named = {split: set().union(*map(entities_of, world.questions[split])) for split in SPLITS}
    assert all(named[a].isdisjoint(named[b]) for a, b in combinations(SPLITS, 2))


def test_gold_passages_state_the_gold_facts(world: World) -> None:
    text = {p.id: p.text for p in world.passages}
    assert len(text) == len(set(text.values())) == len(world.passages)
    for question in questions(world):
        held = [hop for hop in question.gold.chain if hop.stated]
        assert question.gold.passages == tuple(hop.passage for hop in held)
        for hop in held:
            assert hop.fact == f"The {hop.relation} of {hop.subject} is {hop.object}."
            assert hop.fact in sentences(text[hop.passage])
            assert hop.query == f"{hop.relation} of {hop.subject}"


def test_an_unanswerable_question_ends_at_what_no_passage_states(world: World, stated: dict[tuple[str, str], str]) -> None:
    onwards = Counter[int]()
    for question in questions(world):
        *before, last = question.gold.chain
        assert last.stated is (question.type != "unanswerable")
        assert all(hop.stated for hop in before)
        if not last.stated:
            assert (last.relation, last.subject) not in stated
            assert (last.object, last.passage) == ("", "")
            assert last.fact == f"No passage states the {last.relation} of {last.subject}."
            assert question.gold.answers == ("unknown",)
            onwards[question.text.count(" of ") - len(question.gold.chain)] += 1
    assert set(onwards) == {0, 1, 2}  # relations that are asked beyond it


def test_the_length_of_a_question_does_not_tell_that_it_has_no_answer(world: World) -> None:
    lengths = defaultdict(set)
    for question in questions(world):
        if question.type in ("chain", "unanswerable"):
            lengths[question.type].add(question.text.count(" of "))
    assert len(lengths["unanswerable"] & lengths["chain"]) >= 3


def test_an_unanswerable_hop_may_have_been_stated_once(world: World, said: list[str]) -> None:
    once = {match.groups()[:2] for sentence in said if (match := ONCE.fullmatch(sentence))}
    ends = [(q.gold.chain[-1].relation, q.gold.chain[-1].subject) for q in questions(world) if q.type == "unanswerable"]
    assert 0.1 < sum(end in once for end in ends) / len(ends) < 0.8


def test_what_was_is_no_fact_and_never_what_is(said: list[str], stated: dict[tuple[str, str], str]) -> None:
    once = [match.groups() for sentence in said if (match := ONCE.fullmatch(sentence))]
    assert len(once) + len(stated) == len(said)
    assert len(once) / sum(key[0] in RELATIONS for key in stated) == pytest.approx(crowded.OUTDATED, abs=0.1)
    assert all(stated.get((relation, subject)) != obj for relation, subject, obj in once)
    assert not any(facts_in(f"The {relation} of {subject} was {obj}.") for relation, subject, obj in once)


def test_what_is_said_fits_the_types(said: list[str], stated: dict[tuple[str, str], str]) -> None:
    kind = {subject: of for of, relation in DATED.items() for asked, subject in stated if asked == relation}
    assert len(kind) == sum(ENTITIES.values())
    told = Counter[str]()
    for (relation, subject), obj in stated.items():
        told[relation] += 1
        if relation in RELATIONS:
            assert (kind[subject], kind[obj]) == RELATIONS[relation]
            assert obj != subject
        elif obj not in YEARS:
            first, second = obj.split(" and ")
            assert kind[first] == kind[second] == "person"
            assert len({first, second, subject}) == 3
    of_all = sum(told[relation] for relation in RELATIONS) / (3 * len(kind))
    assert of_all == pytest.approx(1 - crowded.ABSENT, abs=0.04)
    assert sum(told[relation] for relation in crowded.LISTED.values()) / len(kind) == pytest.approx(crowded.LISTS, abs=0.1)


def test_passages_speak_of_one_entity_two_of_each(world: World) -> None:
    about = Counter[str]()
    for p in world.passages:
        [subject] = {match[2] for sentence in sentences(p.text) if (match := STATED.fullmatch(sentence) or ONCE.fullmatch(sentence))}
        about[subject] += 1
        assert p.title == ""
    assert set(about.values()) <= {1, 2}
    assert sum(count == 2 for count in about.values()) > 0.9 * len(about)


def test_passages_of_splits_are_mixed(world: World) -> None:
    train = {hop.passage for q in world.questions["train"] for hop in q.gold.chain if hop.stated}
    places = [place for place, p in enumerate(world.passages) if p.id in train]
    assert min(places) < len(world.passages) * 0.1
    assert max(places) > len(world.passages) * 0.9


def test_twins_are_of_one_type_and_many(stated: dict[tuple[str, str], str]) -> None:
    kind = {subject: of for of, relation in DATED.items() for asked, subject in stated if asked == relation}
    twinned = [name for name in kind if mirrored(name) in kind and mirrored(name) != name]
    assert all(kind[name] == kind[mirrored(name)] for name in twinned)
    assert len(twinned) / len(kind) == pytest.approx(2 * crowded.TWINS / (1 + crowded.TWINS), abs=0.08)


def test_the_earlier_one_is_named_first_half_of_the_time() -> None:
    made = build_crowded_world(0, {"train": 600}, {"train": 2000})
    for facts in (2, 4):
        asked = [q for q in made.questions["train"] if (q.type, q.hops) == ("comparison", facts)]
        dated = [[hop.subject for hop in q.gold.chain if hop.relation in DATED.values()] for q in asked]
        first = sum(q.gold.answers == (names[0],) for q, names in zip(asked, dated, strict=True))
        assert first / len(asked) == pytest.approx(0.5, abs=0.1)
    chosen = [q for q in made.questions["train"] if q.type == "intersection"]
    assert sum(q.gold.answers[0] == q.gold.chain[1].subject for q in chosen) / len(chosen) == pytest.approx(0.5, abs=0.1)


def test_entities_are_as_many_as_asked_for_and_of_every_type() -> None:
    taken = {"Bal Bal"}
    for count in (6, 7, 100):
        types = draw_entities(count, random.Random(count), taken)
        assert len(types) == count
        assert set(types.values()) == set(TYPES)
        assert set(types) <= taken
        assert "Bal Bal" not in types


def test_no_twin_is_a_name_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "SYLLABLES", ["Bal", "Dun", "Kes"])
    for seed in range(10):
        types = draw_entities(8, random.Random(seed), {"Bal Dun"})
        assert len(types) == 8
        assert "Dun Bal" in types
        assert "Bal Dun" not in types


def test_a_world_that_is_too_small_is_refused() -> None:
    with within(2), pytest.raises(InputError, match=r"split dev .* raise its entities or lower its questions"):
        build_crowded_world(0, {"train": 60, "dev": 9}, {"train": 20, "dev": 500})
    with within(2), pytest.raises(InputError, match=r"split dev .* give it at least 6"):
        build_crowded_world(0, {"train": 60, "dev": 5}, {"train": 20, "dev": 0})


def test_every_relation_of_the_world_is_known_to_one_type() -> None:
    assert set(DATED) == set(crowded.LISTED) == set(TYPES) == set(RELATIONS_OF)
    assert not {*DATED.values(), *crowded.LISTED.values()} & set(RELATIONS)
