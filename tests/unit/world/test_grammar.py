"""How the world speaks, and that it can read itself back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import EMPLOYER, MENTOR, RIVAL

from rolecast.world.grammar import (
    RELATIONS,
    RELATIONS_OF,
    TYPES,
    YEARS,
    Fact,
    chain_question,
    choice_question,
    comparison_question,
    crowded_lexicon,
    earlier_question,
    facts_in,
    forward_query,
    interrogative,
    intersection_question,
    inverse_query,
    lexicon,
    names,
    rephrased,
    sentences,
    words,
)
from rolecast.world.names import draw_name

FACTS = st.builds(
    lambda seed, relation: Fact(draw_name(random.Random(seed)), relation, draw_name(random.Random(~seed))),
    st.integers(0, 10**6), st.sampled_from(sorted(RELATIONS)),
)  # fmt: skip


def test_every_type_has_three_relations_and_every_relation_known_types() -> None:
    assert {kind: len(relations) for kind, relations in RELATIONS_OF.items()} == dict.fromkeys(TYPES, 3)
    assert {kind for pair in RELATIONS.values() for kind in pair} == set(TYPES)


def test_forms_of_a_fact() -> None:
    assert MENTOR.sentence == "The mentor of Brol Tan is Vrek Stom."
    assert MENTOR.atom == "mentor of Brol Tan: Vrek Stom."
    assert MENTOR.query == forward_query("mentor", "Brol Tan") == "mentor of Brol Tan"
    assert MENTOR.inverse_query == inverse_query("mentor", "Vrek Stom") == "mentor is Vrek Stom"


@pytest.mark.parametrize(("query", "other"), [("mentor of Brol Tan", "Brol Tan mentor"), ("mentor is Vrek Stom", "Vrek Stom as mentor")])
def test_rephrased(query: str, other: str) -> None:
    assert rephrased(query) == other
    assert set(words(query)) - {"of", "is"} == set(words(other)) - {"as"}


@given(st.lists(st.tuples(FACTS, st.booleans()), max_size=6), st.sampled_from([" ", "\n", "\n\n", " So. "]))
def test_facts_are_read_back_in_order(stated: list[tuple[Fact, bool]], between: str) -> None:
    text = between.join(fact.atom if short else fact.sentence for fact, short in stated)
    assert facts_in(text) == [fact for fact, _ in stated]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mentor of Brol Tan",
        "The mentor of Brol Tan is Vrek Stom",
        "Brol Tan is the mentor of nobody.",
        "The mentor of brol tan is vrek stom.",
        "Who is the mentor of Brol Tan?",
        "The mentor Brol Tan is Vrek Stom.",
    ],
)
def test_what_states_no_fact(text: str) -> None:
    assert facts_in(text) == []


def test_sentences() -> None:
    assert sentences(f" {MENTOR.sentence}  {RIVAL.sentence}\n{EMPLOYER.sentence} ") == [MENTOR.sentence, RIVAL.sentence, EMPLOYER.sentence]
    assert sentences("  ") == []
    assert sentences("no stop") == ["no stop"]


@pytest.mark.parametrize(
    ("text", "phrase", "found"),
    [
        ("mentor of Brol Tan", "Brol Tan", True),
        ("MENTOR of brol-tan!", "Brol Tan", True),
        ("mentor of Brol Tank", "Brol Tan", False),
        ("mentor of Abrol Tan", "Brol Tan", False),
        ("mentor of Tan Brol", "Brol Tan", False),
        ("Brol the Tan", "Brol Tan", False),
        ("Örk Zün lives", "örk zün", True),
        ("", "Brol", False),
    ],
)
def test_names_are_found_on_word_boundaries(text: str, phrase: str, found: bool) -> None:
    assert names(text, phrase) is found


@pytest.mark.parametrize(
    ("relations", "question"),
    [
        (["mentor"], "Who is the mentor of Brol Tan?"),
        (["mentor", "employer"], "What is the employer of the mentor of Brol Tan?"),
        (["birthplace", "sponsor", "founder"], "Who is the founder of the sponsor of the birthplace of Brol Tan?"),
    ],
)
def test_chain_question(relations: list[str], question: str) -> None:
    assert chain_question(relations, "Brol Tan") == question


@pytest.mark.parametrize("relation", sorted(RELATIONS))
def test_who_asks_for_persons(relation: str) -> None:
    assert interrogative(relation) == ("Who" if RELATIONS[relation][1] == "person" else "What")


def test_questions_about_two_facts() -> None:
    assert comparison_question("mentor", "Brol Tan", "Kel Dax") == "Do Brol Tan and Kel Dax have the same mentor?"
    assert intersection_question("person", MENTOR, RIVAL) == "Which person has the mentor Vrek Stom and the rival Grel Pon?"


def test_what_was_is_said_and_not_read() -> None:
    assert MENTOR.outdated == "The mentor of Brol Tan was Vrek Stom."
    assert facts_in(f"{MENTOR.outdated} {RIVAL.sentence} {MENTOR.outdated}") == [RIVAL]
    assert sentences(f"{MENTOR.outdated} {RIVAL.sentence}") == [MENTOR.outdated, RIVAL.sentence]


def test_what_is_missing_is_no_fact() -> None:
    fact = Fact("Brol Tan", "mentor", "")
    assert fact.missing == "No passage states the mentor of Brol Tan."
    assert facts_in(fact.missing) == []


def test_a_list_is_one_object() -> None:
    council = Fact("Kel Dax", "council", "Brol Tan and Vrek Stom")
    assert facts_in(council.sentence) == facts_in(council.atom) == [council]


def test_questions_about_a_crowd() -> None:
    assert earlier_question("birth", "Brol Tan", "the mayor of Kel Dax") == "Whose birth is earlier, Brol Tan or the mayor of Kel Dax?"
    council = Fact("Kel Dax", "council", "Brol Tan and Vrek Stom")
    assert choice_question(council, MENTOR) == "Who of the council of Kel Dax has the mentor Vrek Stom?"


def test_the_words_of_a_crowd_are_not_the_demos() -> None:
    """Whose vocabulary, and with it every figure, stays."""
    assert not set(crowded_lexicon()) & set(lexicon())
    year = Fact("Kel Dax", "charter", YEARS[0])
    council = Fact("Kel Dax", "council", "Brol Tan and Vrek Stom")
    spoken = [
        MENTOR.outdated, year.sentence, council.sentence, choice_question(council, MENTOR),
        earlier_question("charter", "Kel Dax", "the mayor of Kel Dax"),
    ]  # fmt: skip
    marks = str.maketrans({mark: f" {mark} " for mark in "?.,"})
    known = {*lexicon(), *crowded_lexicon(), *["Brol", "Tan", "Vrek", "Stom", "Kel", "Dax"]}
    assert {word for text in spoken for word in text.translate(marks).split()} <= known


@given(FACTS, FACTS)
def test_the_lexicon_has_every_word_that_is_no_name(first: Fact, second: Fact) -> None:
    spoken = [
        first.sentence, first.atom, first.query, first.inverse_query, rephrased(first.query), rephrased(first.inverse_query),
        chain_question([first.relation, second.relation], first.subject), comparison_question(first.relation, first.subject, second.subject),
        *(intersection_question(kind, first, second) for kind in TYPES),
    ]  # fmt: skip
    known = {*lexicon(), *(word for fact in (first, second) for name in (fact.subject, fact.object) for word in name.split())}
    marks = str.maketrans({mark: f" {mark} " for mark in "?.:"})
    assert {word for text in spoken for word in text.translate(marks).split()} <= known
