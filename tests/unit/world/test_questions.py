"""Questions over a graph small enough to read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from scripted import EMPLOYER, MAYOR, MENTOR, RIVAL

from rolecast.errors import InputError
from rolecast.types import Gold, Hop
from rolecast.world.grammar import Fact
from rolecast.world.graph import Graph
from rolecast.world.questions import (
    Draft,
    RelationsOf,
    distinct,
    draft_chain,
    draft_choice,
    draft_comparison,
    draft_earlier,
    draft_intersection,
)
from tests.bounded import within

FOUNDER = Fact("Kel Dax", "founder", "Brol Tan")
TYPES = {"Brol Tan": "person", "Vrek Stom": "person", "Grel Pon": "person", "Kel Dax": "company"}


def chain(facts: Sequence[Fact], hops: int, seed: int = 0, subject: str = "Brol Tan") -> Draft | None:
    return draft_chain(Graph(facts), subject, hops, random.Random(seed), RelationsOf(TYPES))


def all_chains(facts: Sequence[Fact], hops: int, tries: int = 200) -> set[str]:
    return {draft.text for seed in range(tries) if (draft := chain(facts, hops, seed)) is not None}


def test_a_chain_walks_from_its_subject_to_the_answer() -> None:
    draft = next(draft for seed in range(200) if (draft := chain([MENTOR, EMPLOYER], 2, seed)) is not None)
    assert draft == Draft(
        "What is the employer of the mentor of Brol Tan?", ("Kel Dax",), ((MENTOR, MENTOR.query), (EMPLOYER, EMPLOYER.query)), "chain"
    )


def test_every_walk_can_be_drawn() -> None:
    assert all_chains([MENTOR, Fact("Brol Tan", "birthplace", "Dral Vim"), EMPLOYER], 1) == {
        "Who is the mentor of Brol Tan?",
        "What is the birthplace of Brol Tan?",
    }


def test_a_walk_that_gets_stuck_gives_no_question() -> None:
    assert all_chains([MENTOR, EMPLOYER], 3) == set()


def test_a_walk_meets_no_entity_twice() -> None:
    assert all_chains([MENTOR, EMPLOYER, FOUNDER], 2) == {"What is the employer of the mentor of Brol Tan?"}
    assert all_chains([MENTOR, EMPLOYER, FOUNDER], 3) == set()


def test_a_walk_asks_no_relation_twice() -> None:
    again = Fact("Vrek Stom", "mentor", "Grel Pon")
    assert all_chains([MENTOR, again], 2) == set()
    assert all_chains([MENTOR, again, Fact("Vrek Stom", "birthplace", "Dral Vim")], 2) == {
        "What is the birthplace of the mentor of Brol Tan?"
    }


@pytest.mark.parametrize(("object_", "answer"), [("Vrek Stom", "yes"), ("Grel Pon", "no")])
def test_comparison(object_: str, answer: str) -> None:
    other = Fact("Zen Kol", "mentor", object_)
    draft = draft_comparison(MENTOR, other)
    assert draft == Draft(
        "Do Brol Tan and Zen Kol have the same mentor?", (answer,), ((MENTOR, MENTOR.query), (other, other.query)), "comparison"
    )


def test_intersection_is_found_by_its_objects() -> None:
    draft = draft_intersection("person", MENTOR, RIVAL)
    assert draft.text == "Which person has the mentor Vrek Stom and the rival Grel Pon?"
    assert draft.answers == ("Brol Tan",)
    assert [query for _, query in draft.facts] == ["mentor is Vrek Stom", "rival is Grel Pon"]


FIRST, SECOND = Fact("Brol Tan", "birth", "1905"), Fact("Zen Kol", "birth", "1911")


@pytest.mark.parametrize(
    ("ways", "text", "answer"),
    [
        (((FIRST,), (SECOND,)), "Whose birth is earlier, Brol Tan or Zen Kol?", "Brol Tan"),
        (((SECOND,), (FIRST,)), "Whose birth is earlier, Zen Kol or Brol Tan?", "Brol Tan"),
        (((FIRST,), (MAYOR, SECOND)), "Whose birth is earlier, Brol Tan or the mayor of Dral Vim?", "Brol Tan"),
    ],
)
def test_who_is_earlier(ways: tuple[tuple[Fact, ...], tuple[Fact, ...]], text: str, answer: str) -> None:
    facts = [fact for way in ways for fact in way]
    assert draft_earlier(*ways) == Draft(text, (answer,), tuple((fact, fact.query) for fact in facts), "comparison")


def test_nothing_is_earlier_than_itself() -> None:
    assert draft_earlier((FIRST,), (FIRST,)) is None
    assert draft_earlier((FIRST,), (Fact("Zen Kol", "birth", "1905"),)) is None


def test_who_on_a_list_is_asked_for_one_by_one() -> None:
    council, other = Fact("Dral Vim", "council", "Brol Tan and Zen Kol"), Fact("Zen Kol", "mentor", "Grel Pon")
    draft = draft_choice(council, (MENTOR, other), other)
    assert draft.text == "Who of the council of Dral Vim has the mentor Grel Pon?"
    assert draft.answers == ("Zen Kol",)
    assert [query for _, query in draft.facts] == ["council of Dral Vim", "mentor of Brol Tan", "mentor of Zen Kol"]
    assert draft.type == "intersection"


def test_a_hop_that_no_passage_states_has_none() -> None:
    missing = Fact("Vrek Stom", "employer", "")
    draft = Draft("What?", ("unknown",), ((MENTOR, MENTOR.query), (missing, missing.query)), "unanswerable")
    question = draft.question("id", {MENTOR: "p1"}.__getitem__)  # which is not asked for the passage of what is missing
    assert question.gold.passages == ("p1",)
    assert question.gold.chain[1] == Hop("Vrek Stom", "employer", "", "No passage states the employer of Vrek Stom.", "", missing.query)
    assert [hop.stated for hop in question.gold.chain] == [True, False]


def test_distinct_questions_are_drawn_until_there_are_no_more() -> None:
    drafts = [Draft(f"{n}?", ("a",), (), "chain") for n in range(3)]
    asked: list[int] = []

    def draw(number: int) -> Draft | None:
        asked.append(number)
        return [None, drafts[0], drafts[0], drafts[number % 3]][min(len(asked), 4) - 1]

    assert distinct(3, draw, 9, "dev") == drafts
    assert asked == [0, 0, 1, 1, 2]
    with within(2), pytest.raises(InputError, match="the world's 9 entities of split dev give 3 distinct questions, not 4"):
        distinct(4, lambda number: drafts[number % 3], 9, "dev")


def test_a_question_knows_its_passages_and_hops() -> None:
    question = draft_intersection("person", MENTOR, RIVAL).question("id", {MENTOR: "p1", RIVAL: "p2"}.__getitem__)
    hops = (
        Hop("Brol Tan", "mentor", "Vrek Stom", MENTOR.sentence, "p1", "mentor is Vrek Stom"),
        Hop("Brol Tan", "rival", "Grel Pon", RIVAL.sentence, "p2", "rival is Grel Pon"),
    )
    assert question.gold == Gold(("Brol Tan",), hops, ("p1", "p2"))
    assert (question.id, question.type, question.hops, dict(question.given)) == ("id", "intersection", 2, {})


def test_a_second_object_of_one_relation_is_refused() -> None:
    with pytest.raises(ValueError, match="mentor of Brol Tan is already Vrek Stom"):
        Graph([MENTOR, Fact("Brol Tan", "mentor", "Grel Pon")])


def test_graph_look_ups() -> None:
    graph = Graph([MENTOR, RIVAL, EMPLOYER])
    assert graph.object_of("mentor", "Brol Tan") == MENTOR
    assert graph.object_of("mentor", "Vrek Stom") is None
    assert graph.subjects_of("employer", "Kel Dax") == [EMPLOYER]
    assert graph.subjects_of("mentor", "Kel Dax") == []
    assert graph.about("Brol Tan") == [MENTOR, RIVAL]
    assert graph.about("nobody") == []
