"""The reports world: several things at once, each within two steps, with a short answer and a rubric."""

from __future__ import annotations

from collections import Counter

import pytest

from rolecast.config import make_config
from rolecast.errors import InputError
from rolecast.seeding import stream
from rolecast.types import Question, RubricItem
from rolecast.world.counterfactual import World, build_world
from rolecast.world.grammar import Fact, facts_in, names
from rolecast.world.questions import Draft
from rolecast.world.reports import SLOTS, build_reports_world, draft_fork, draft_pair
from rolecast.world.throwaway import COUNTERFACTUAL, REPORT_KINDS, REPORTS, ThrowawayRetriever, draw_throwaway

ENTITIES, QUESTIONS = {"train": 300, "test": 120}, {"train": 60, "test": 36}


@pytest.fixture(scope="module")
def world() -> World:
    return build_reports_world(3, ENTITIES, QUESTIONS)


def every(world: World) -> list[Question]:
    return [question for questions in world.questions.values() for question in questions]


def test_kinds_come_in_turn(world: World) -> None:
    assert Counter((q.type, q.hops) for q in world.questions["train"]) == dict.fromkeys(SLOTS, 10)


def test_the_same_seed_gives_the_same_world_and_another_another(world: World) -> None:
    assert build_reports_world(3, ENTITIES, QUESTIONS) == world
    assert build_reports_world(4, ENTITIES, QUESTIONS).questions != world.questions


def test_facts_are_those_of_the_counterfactual_world(world: World) -> None:
    plain = build_world(3, ENTITIES, QUESTIONS)
    assert {passage.text for passage in plain.passages} == {passage.text for passage in world.passages}
    assert not {q.id for q in every(plain)} & {q.id for q in every(world)}


def test_every_fact_is_stated_where_it_says_and_is_an_item_of_the_rubric(world: World) -> None:
    texts = {passage.id: passage.text for passage in world.passages}
    for q in every(world):
        assert q.gold.rubric == tuple(RubricItem(hop.fact) for hop in q.gold.chain)
        for hop in q.gold.chain:
            assert texts[hop.passage] == hop.fact == Fact(hop.subject, hop.relation, hop.object).sentence


def test_what_is_asked_for_is_found_in_two_steps(world: World) -> None:
    """Each fact is about an entity that the question names, or about the object of one that is."""
    for q in every(world):
        named = {hop.subject for hop in q.gold.chain if names(q.text, hop.subject)}
        led = {hop.object for hop in q.gold.chain if hop.subject in named}
        assert all(hop.subject in named | led for hop in q.gold.chain)


def test_the_answer_holds_the_ends_of_all_branches_in_either_order(world: World) -> None:
    for q in every(world):
        ends = [hop.object for hop in q.gold.chain if hop.object not in {other.subject for other in q.gold.chain}]
        assert set(q.gold.answers[0].split(" and ")) == set(ends)
        if q.type != "chain":
            assert q.text.startswith("Report the ")
            assert len(q.gold.answers) == 2
            assert q.gold.answers[1].split(" and ") == q.gold.answers[0].split(" and ")[::-1]


def test_splits_share_no_entity(world: World) -> None:
    of = {
        split: {name for q in questions for hop in q.gold.chain for name in (hop.subject, hop.object)}
        for split, questions in world.questions.items()
    }
    assert not of["train"] & of["test"]


LEAD, ONE, TWO = (
    Fact("Brol Tan", "mentor", "Vrek Stom"),
    Fact("Vrek Stom", "employer", "Kel Dax"),
    Fact("Vrek Stom", "birthplace", "Zen Kol"),
)


@pytest.mark.parametrize(
    ("draft", "text"),
    [
        (draft_fork(LEAD, ONE, TWO), "Report the employer and the birthplace of the mentor of Brol Tan."),
        (
            draft_pair([LEAD, ONE], [Fact("Dral Vim", "mayor", "Zen Kol")]),
            "Report the employer of the mentor of Brol Tan and the mayor of Dral Vim.",
        ),
    ],
)
def test_questions_by_hand(draft: Draft, text: str) -> None:
    assert (draft.text, draft.answers) == (text, ("Kel Dax and Zen Kol", "Zen Kol and Kel Dax"))


def test_one_thing_that_is_both_is_one_answer() -> None:
    draft = draft_pair([Fact("A B", "mayor", "Zen Kol")], [Fact("C D", "mentor", "Zen Kol")])
    assert draft.answers == ("Zen Kol and Zen Kol",)


def test_a_world_too_small_says_so() -> None:
    with pytest.raises(InputError, match="distinct questions"):
        build_reports_world(0, {"train": 9}, {"train": 2000})


# Throw-away worlds of its kind


def test_throw_away_questions_are_of_its_kinds_with_rubrics() -> None:
    drawn = Counter((q.type, q.hops) for n in range(2000) if (q := draw_throwaway(stream(1, "kinds", n), REPORTS).question))
    assert sum(share for *_, share in REPORT_KINDS) == pytest.approx(1)
    for kind, hops, share in REPORT_KINDS:
        assert drawn[kind, hops] / 2000 == pytest.approx(share, abs=0.03)
    assert sum(drawn[kind, hops] for kind, hops, _ in REPORT_KINDS) == 2000


@pytest.mark.parametrize("number", range(60))
def test_a_throw_away_world_states_what_its_question_needs(number: int) -> None:
    world = draw_throwaway(stream(2, "throwaway", number), REPORTS)
    assert world.question == draw_throwaway(stream(2, "throwaway", number), REPORTS).question
    for hop in world.question.gold.chain:
        assert world.graph.object_of(hop.relation, hop.subject) == facts_in(hop.fact)[0]
    assert [item.text for item in world.question.gold.rubric] == [hop.fact for hop in world.question.gold.chain]


def test_other_kinds_are_drawn_as_before() -> None:
    for number in range(20):
        question = draw_throwaway(stream(0, "throwaway", number)).question
        assert question == draw_throwaway(stream(0, "throwaway", number), COUNTERFACTUAL).question
        assert not question.gold.rubric
    assert ThrowawayRetriever(draw_throwaway(stream(0, "x", 0), REPORTS))


def test_a_runs_teachers_play_on_worlds_like_its_own() -> None:
    assert make_config({}, "here").data.thrown_away == COUNTERFACTUAL
    assert make_config({"data": {"world": {"kind": "reports"}}}, "here").data.thrown_away == REPORTS
    files = {"world": None, **dict.fromkeys(("corpus", "train", "dev", "test"), "x")}
    assert make_config({"data": files}, "here").data.thrown_away == COUNTERFACTUAL
