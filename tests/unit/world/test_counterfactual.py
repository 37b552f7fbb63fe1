"""The counterfactual world, checked by brute force from its passages and the questions' own words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest

from rolecast.config import WorldConfig
from rolecast.errors import InputError
from rolecast.types import Question
from rolecast.world.counterfactual import World, build_world
from rolecast.world.grammar import RELATIONS, RELATIONS_OF, TYPES
from tests.bounded import within

ENTITIES = {"train": 300, "dev": 90, "test": 120}
QUESTIONS = {"train": 240, "dev": 48, "test": 96}
SPLITS = tuple(ENTITIES)
STATED = re.compile(r"The (\w+) of (\w+ \w+) is (\w+ \w+)\.")


@pytest.fixture(scope="module")
def world() -> World:
    return build_world(0, ENTITIES, QUESTIONS)


@pytest.fixture(scope="module")
def stated(world: World) -> dict[tuple[str, str], str]:
    """Object by (relation, subject), read off the passages."""
    triples = [match.groups() for p in world.passages if (match := STATED.fullmatch(p.text))]
    assert len(triples) == len(world.passages)
    return {(relation, subject): obj for relation, subject, obj in triples}


def answers(text: str, stated: dict[tuple[str, str], str]) -> set[str]:
    """Every answer that the passages allow, from the question's words alone."""
    if match := re.fullmatch(r"(?:Who|What) is ((?:the \w+ of )+)(\w+ \w+)\?", text):
        at = match[2]
        for relation in reversed(re.findall(r"the (\w+) of", match[1])):
            at = stated[relation, at]
        return {at}
    if match := re.fullmatch(r"Do (\w+ \w+) and (\w+ \w+) have the same (\w+)\?", text):
        return {"yes" if stated[match[3], match[1]] == stated[match[3], match[2]] else "no"}
    match = re.fullmatch(r"Which (\w+) has the (\w+) (\w+ \w+) and the (\w+) (\w+ \w+)\?", text)
    assert match, text
    first, second = ({s for (r, s), o in stated.items() if r == match[i] and o == match[i + 1]} for i in (2, 4))
    return first & second


def questions(world: World) -> list[Question]:
    return [question for split in SPLITS for question in world.questions[split]]


def entities_of(question: Question) -> set[str]:
    return {name for hop in question.gold.chain for name in (hop.subject, hop.object)} | set(question.gold.answers) - {"yes", "no"}


def test_the_world_is_a_function_of_the_seed(world: World) -> None:
    assert build_world(0, ENTITIES, QUESTIONS) == world
    other = build_world(1, ENTITIES, QUESTIONS)
    assert {p.text for p in other.passages}.isdisjoint({p.text for p in world.passages})


def test_another_seed_is_not_the_same_world_with_other_names(world: World) -> None:
    other = build_world(1, ENTITIES, QUESTIONS)
    assert popularity(other) != popularity(world)


def popularity(world: World) -> list[tuple[str, int]]:
    """How often each relation's objects are named, whatever they are called."""
    named = Counter((match[1], match[3]) for p in world.passages if (match := STATED.fullmatch(p.text)))
    return sorted((relation, count) for (relation, _), count in named.items())


def test_a_split_does_not_depend_on_how_many_questions_others_ask(world: World) -> None:
    other = build_world(0, ENTITIES, {**QUESTIONS, "train": 8})
    assert [q.text for q in other.questions["test"]] == [q.text for q in world.questions["test"]]
    assert other.passages == world.passages


def test_every_entity_has_the_facts_of_its_type(world: World, stated: dict[tuple[str, str], str]) -> None:
    relations: defaultdict[str, set[str]] = defaultdict(set)
    for relation, subject in stated:
        relations[subject].add(relation)
    assert len(relations) == sum(ENTITIES.values())
    assert len(world.passages) == len(stated) == 3 * sum(ENTITIES.values())
    kinds = Counter(next(kind for kind in TYPES if set(RELATIONS_OF[kind]) == found) for found in relations.values())
    assert max(kinds.values()) - min(kinds.values()) <= len(SPLITS)


def test_objects_are_of_the_right_type_and_never_the_subject(stated: dict[tuple[str, str], str]) -> None:
    kind = {subject: RELATIONS[relation][0] for relation, subject in stated}
    for (relation, subject), obj in stated.items():
        assert (kind[subject], kind[obj]) == RELATIONS[relation]
        assert obj != subject


def test_passages_have_unique_ids_in_corpus_order_and_their_subject_as_title(world: World) -> None:
    assert [p.id for p in world.passages] == [f"p{place:06d}" for place in range(len(world.passages))]
    assert all(p.text.startswith("The ") and f" of {p.title} is " in p.text for p in world.passages)


def test_passages_of_splits_are_mixed(world: World) -> None:
    train = set().union(*map(entities_of, world.questions["train"]))
    places = [place for place, p in enumerate(world.passages) if p.title in train]
    assert places[0] < len(world.passages) / 10
    assert places[-1] > len(world.passages) * 9 / 10


def test_splits_share_no_subject_bridge_or_answer(world: World) -> None:
    met = {split: set().union(*map(entities_of, world.questions[split])) for split in SPLITS}
    assert all(met.values())
    assert met["train"].isdisjoint(met["dev"] | met["test"])
    assert met["dev"].isdisjoint(met["test"])


def test_facts_never_cross_splits(world: World, stated: dict[tuple[str, str], str]) -> None:
    part: dict[str, str] = {}
    for (_, subject), obj in stated.items():
        part.setdefault(subject, subject)
        part.setdefault(obj, obj)
    neighbours: defaultdict[str, set[str]] = defaultdict(set)
    for (_, subject), obj in stated.items():
        neighbours[subject].add(obj)
        neighbours[obj].add(subject)
    reached = {split: reachable(set().union(*map(entities_of, world.questions[split])), neighbours) for split in SPLITS}
    assert all(reached[a].isdisjoint(reached[b]) for a in SPLITS for b in SPLITS if a < b)


def reachable(start: set[str], neighbours: dict[str, set[str]]) -> set[str]:
    seen, open_ = set(start), list(start)
    while open_:
        for name in neighbours[open_.pop()] - seen:
            seen.add(name)
            open_.append(name)
    return seen


def test_every_answer_is_the_only_one(world: World, stated: dict[tuple[str, str], str]) -> None:
    for question in questions(world):
        assert answers(question.text, stated) == set(question.gold.answers), question.text


@pytest.mark.parametrize("seed", range(6))
def test_every_answer_is_the_only_one_where_entities_share_many_objects(seed: int) -> None:
    world = build_world(seed, {"train": 24}, {"train": 96})
    stated = {(m[1], m[2]): m[3] for p in world.passages if (m := STATED.fullmatch(p.text))}
    assert all(answers(question.text, stated) == set(question.gold.answers) for question in world.questions["train"])


def test_gold_passages_state_the_gold_facts(world: World) -> None:
    text = {p.id: p.text for p in world.passages}
    for question in questions(world):
        assert question.gold.passages == tuple(hop.passage for hop in question.gold.chain)
        for hop in question.gold.chain:
            assert text[hop.passage] == hop.fact == f"The {hop.relation} of {hop.subject} is {hop.object}."


def test_gold_queries_name_the_relation_and_what_is_known(world: World) -> None:
    for question in questions(world):
        known = re.findall(r"[A-Z]\w+ [A-Z]\w+", question.text.split(" ", 1)[1])
        for hop in question.gold.chain:
            asked = hop.subject if question.type != "intersection" else hop.object
            assert hop.query == f"{hop.relation} {'of' if asked == hop.subject else 'is'} {asked}"
            assert asked in known
            known.append(hop.object)


def test_who_asks_for_a_person(world: World) -> None:
    for question in questions(world):
        if question.type == "chain":
            assert question.text.startswith("Who") is (RELATIONS[question.gold.chain[-1].relation][1] == "person")


@pytest.mark.parametrize("split", SPLITS)
def test_hops_come_in_equal_parts_and_two_hops_in_equal_thirds(world: World, split: str) -> None:
    asked = world.questions[split]
    assert len(asked) == QUESTIONS[split]
    assert Counter(q.hops for q in asked) == dict.fromkeys((1, 2, 3, 4), QUESTIONS[split] // 4)
    assert [q.hops for q in asked[:8]] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert Counter(q.type for q in asked if q.hops == 2) == dict.fromkeys(("chain", "comparison", "intersection"), QUESTIONS[split] // 12)
    assert all(q.hops == len(q.gold.chain) for q in asked)


@pytest.mark.parametrize("split", SPLITS)
def test_comparisons_are_yes_and_no_in_equal_parts(world: World, split: str) -> None:
    found = Counter(q.gold.answers for q in world.questions[split] if q.type == "comparison")
    assert found == {("yes",): QUESTIONS[split] // 24, ("no",): QUESTIONS[split] // 24}


def test_questions_and_ids_are_distinct(world: World) -> None:
    asked = questions(world)
    assert len({q.id for q in asked}) == len({q.text for q in asked}) == len(asked)


def test_ids_depend_on_the_seed_so_that_two_worlds_never_share_a_group(world: World) -> None:
    other = build_world(1, ENTITIES, QUESTIONS)
    assert {q.id for q in questions(world)}.isdisjoint({q.id for q in questions(other)})


def test_an_intersection_is_findable(world: World, stated: dict[tuple[str, str], str]) -> None:
    for question in questions(world):
        if question.type == "intersection":
            for hop in question.gold.chain:
                assert sum(key[0] == hop.relation and obj == hop.object for key, obj in stated.items()) <= 2


def test_every_gold_passage_of_the_default_world_has_three_distractors() -> None:
    """The same entity's other relations, and the relation asked for of names that share a word in the same place."""
    world = build_world(0, WorldConfig().entities, dict.fromkeys(SPLITS, 48))
    assert len({p.title for p in world.passages}) == sum(world.entities.values()) == 6800
    assert len(world.passages) >= 20_000
    about = Counter(p.title for p in world.passages)
    by_word: defaultdict[tuple[int, str, str], set[str]] = defaultdict(set)
    for p in world.passages:
        relation = p.text.split()[1]
        for place, word in enumerate(p.title.split()):
            by_word[place, word, relation].add(p.title)
    for question in questions(world):
        for hop in question.gold.chain:
            near = set().union(*(by_word[place, word, hop.relation] for place, word in enumerate(hop.subject.split())))
            assert len(near - {hop.subject}) >= 1
            assert about[hop.subject] - 1 + len(near - {hop.subject}) >= 3


@pytest.mark.parametrize(
    ("entities", "asked"),
    [
        (12, 100_000),  # more questions than there are
        (3, 4),  # one person can have no mentor but itself
        (2, 4),  # no company at all
    ],
)
def test_a_world_that_is_too_small_is_refused(entities: int, asked: int) -> None:
    with within(0.5), pytest.raises(InputError):
        build_world(0, {"train": entities}, {"train": asked})


def test_a_refusal_names_the_split_and_the_next_step() -> None:
    with pytest.raises(InputError, match=r"split dev .* not 500; raise its entities or lower its questions"):
        build_world(0, {"train": 60, "dev": 12}, {"train": 4, "dev": 500})
    with pytest.raises(InputError, match=r"split dev .* give it at least 6"):
        build_world(0, {"train": 60, "dev": 5}, {"train": 4, "dev": 0})
    with pytest.raises(InputError, match=r"entities are of the splits train, its questions of train, dev"):
        build_world(0, {"train": 60}, {"train": 4, "dev": 4})


def test_more_entities_than_names_are_refused() -> None:
    with within(0.5), pytest.raises(InputError, match="runs out of names"):
        build_world(0, {"train": 200_000}, {"train": 4})


def test_the_smallest_world_and_a_split_of_nothing() -> None:
    made = build_world(0, {"train": 6, "dev": 0}, {"train": 4, "dev": 0})
    assert (len(made.questions["train"]), made.questions["dev"]) == (4, [])


def test_splits_of_entities_and_questions_must_agree() -> None:
    with pytest.raises(InputError):
        build_world(0, {"train": 30, "dev": 30}, {"train": 4})
