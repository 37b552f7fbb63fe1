"""Throw-away worlds: the same stream gives the same episode, and results are shaped as the module says."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rolecast.seeding import stream
from rolecast.types import Passage
from rolecast.world import names, throwaway
from rolecast.world.grammar import RELATIONS, RELATIONS_OF, facts_in, rephrased
from rolecast.world.throwaway import KINDS, ThrowawayRetriever, ThrowawayWorld, draw_throwaway

K = 5


def world_of(number: int, kind: str = "chain", hops: int = 2) -> ThrowawayWorld:
    return ThrowawayWorld(stream("test", number), hops, kind)


def ask(world: ThrowawayWorld, query: str, k: int = K) -> list[Passage]:
    return world.passages(query, k)


@pytest.mark.parametrize("number", range(8))
def test_an_episode_is_a_function_of_its_stream(number: int) -> None:
    one, two = (draw_throwaway(stream(0, "throwaway", number)) for _ in range(2))
    assert one.question == two.question
    for hop in one.question.gold.chain:
        assert ask(one, hop.query) == ask(two, hop.query)
    assert one.graph.facts == two.graph.facts


def test_episodes_share_no_fact() -> None:
    seen = [fact for number in range(200) for fact in draw_throwaway(stream(0, "throwaway", number)).graph.facts]
    assert len(set(seen)) == len(seen)


def test_kinds_are_drawn_in_their_shares() -> None:
    assert sum(share for *_, share in KINDS) == pytest.approx(1)
    drawn = Counter((q.type, q.hops) for number in range(3000) if (q := draw_throwaway(stream(1, "kinds", number)).question))
    for kind, hops, share in KINDS:
        assert drawn[kind, hops] / 3000 == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(("kind", "hops"), [(kind, hops) for kind, hops, _ in KINDS])
def test_the_gold_chain_is_stated_in_the_graph_and_answers_the_question(kind: str, hops: int) -> None:
    for number in range(60):
        world = world_of(number, kind, hops)
        question = world.question
        assert (question.type, question.hops, len(question.gold.chain)) == (kind, hops, hops)
        for hop in question.gold.chain:
            assert hop.fact == hop.passage
            assert [(f.subject, f.relation, f.object) for f in facts_in(hop.fact)] == [(hop.subject, hop.relation, hop.object)]
            assert world.graph.object_of(hop.relation, hop.subject) in facts_in(hop.fact)
        last = question.gold.chain[-1]
        first = question.gold.chain[0]
        expected = {"chain": last.object, "intersection": last.subject, "comparison": "yes" if first.object == last.object else "no"}
        assert question.gold.answers == (expected[kind],)


def test_comparisons_are_yes_half_of_the_time() -> None:
    drawn = Counter(world_of(number, "comparison").question.gold.answers for number in range(1000))
    assert drawn["yes",] / 1000 == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("k", [1, 3, 5, 10])
def test_a_query_shows_k_distinct_passages(k: int) -> None:
    for number in range(40):
        world = world_of(number, "intersection" if number % 2 else "chain")
        for hop in world.question.gold.chain:
            shown = ask(world, hop.query, k)
            assert len({p.text for p in shown}) == len(shown) == k
            assert all(p.id == p.text for p in shown)


@pytest.mark.parametrize(("kind", "hops", "found"), [("chain", 1, 1), ("chain", 3, 1), ("comparison", 2, 2)])
def test_a_question_in_full_finds_what_it_names(kind: str, hops: int, found: int) -> None:
    """The facts of the entities in the question, not those of the entities that must be found first."""
    hits = 0
    for number in range(100):
        world = world_of(number, kind, hops)
        shown = ask(world, world.question.text)
        assert len({p.text for p in shown}) == len(shown) == K
        gold = [hop.fact for hop in world.question.gold.chain]
        hits += all(fact in [p.text for p in shown] for fact in gold[:found])
        assert not {p.text for p in shown} & set(gold[found:])
    assert hits >= 100 * (1 - throwaway.MISS * found) - 5


def test_text_that_names_nothing_finds_nothing() -> None:
    assert ask(world_of(0), "What is this?") == []


def gold_ranks(tries: int) -> Counter[int | None]:
    ranks: Counter[int | None] = Counter()
    for number in range(tries):
        world = world_of(number, "chain", 1)
        [hop] = world.question.gold.chain
        texts = [p.text for p in ask(world, hop.query)]
        ranks[texts.index(hop.fact) if hop.fact in texts else None] += 1
    return ranks


def test_the_gold_passage_comes_first_unless_the_result_is_shuffled() -> None:
    tries = 4000
    ranks = gold_ranks(tries)
    assert 0.005 < ranks[None] / tries < 0.04
    shown = tries - ranks[None]
    assert ranks[0] / shown == pytest.approx(1 - throwaway.SHUFFLED * (1 - 1 / K), abs=0.03)
    for rank in range(1, K):
        assert ranks[rank] / shown == pytest.approx(throwaway.SHUFFLED / K, abs=0.02)


def test_a_miss_shows_no_asked_for_passage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throwaway, "MISS", 1.0)
    assert gold_ranks(300) == {None: 300}


def test_without_misses_the_gold_passage_is_always_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throwaway, "MISS", 0.0)
    assert gold_ranks(300)[None] == 0


def test_a_result_holds_what_else_is_said_of_the_entity_and_near_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throwaway, "SHUFFLED", 0.0)
    kinds: Counter[str] = Counter()
    tries = 600
    for number in range(tries):
        world = world_of(number, "chain", 1)
        [hop] = world.question.gold.chain
        facts = [fact for p in ask(world, hop.query) for fact in facts_in(p.text)]
        for fact in (fact for fact in facts if fact.sentence != hop.fact):
            mentioned = {*fact.subject.split(), *fact.object.split()} & set(hop.subject.split())
            assert mentioned, "a distractor has nothing in common with the query"
            kinds["same subject"] += fact.subject == hop.subject
        kinds["intruder"] += len(facts) > 1 and facts[1].relation == hop.relation
    assert kinds["same subject"] / tries == pytest.approx(2, abs=0.1)  # every entity has three facts
    assert kinds["intruder"] / tries == pytest.approx(throwaway.INTRUDER, abs=0.05)


def test_asking_again_states_the_same_facts() -> None:
    world = world_of(3, "chain", 1)
    [hop] = world.question.gold.chain
    shown = [fact for _ in range(30) for p in ask(world, hop.query) for fact in facts_in(p.text) if fact.subject == hop.subject]
    objects = Counter((fact.relation, fact.object) for fact in set(shown))
    assert len({relation for relation, _ in objects}) == len(objects) <= 4


def test_results_do_not_contradict_each_other_about_a_name_of_two_equal_words() -> None:
    world = world_of(0, "chain", 1)
    world.types["Vek Vek"] = "person"
    for _ in range(300):
        shown = [fact for p in ask(world, "mentor of Vek Vek") for fact in facts_in(p.text)]
        assert len({fact.object for fact in shown if (fact.subject, fact.relation) == ("Vek Vek", "mentor")}) <= 1


@pytest.mark.parametrize("kind", ["chain", "comparison", "intersection"])
def test_no_two_passages_of_a_world_contradict_each_other(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "SYLLABLES", names.SYLLABLES[:4])  # names meet often
    monkeypatch.setattr(throwaway, "SYLLABLES", names.SYLLABLES[:4])
    for number in range(60):
        world = world_of(number, kind)
        asked = [hop.query for hop in world.question.gold.chain]
        shown: dict[tuple[str, str], str] = {}
        for query in [*asked, *(f"{relation} of {name}" for name in list(world.types) for relation in RELATIONS_OF[world.types[name]])]:
            for fact in (fact for p in ask(world, query, 4) for fact in facts_in(p.text)):
                assert shown.setdefault((fact.subject, fact.relation), fact.object) == fact.object
        assert all(shown.get((f.subject, f.relation), f.object) == f.object for f in world.graph.facts)


@pytest.mark.parametrize("inverse", [False, True])
def test_a_query_in_other_words_finds_the_same(inverse: bool) -> None:
    found = 0
    for number in range(60):
        world = world_of(number, "intersection" if inverse else "chain", 2 if inverse else 1)
        hop = world.question.gold.chain[0]
        found += hop.fact in [p.text for p in ask(world, rephrased(hop.query))]
    assert found >= 54


def test_an_inverse_query_shows_every_subject() -> None:
    both = 0
    for number in range(200):
        world = world_of(number, "intersection")
        for hop in world.question.gold.chain:
            facts = world.graph.subjects_of(hop.relation, hop.object)
            texts = [p.text for p in ask(world, hop.query)]
            if len(facts) == 2 and hop.fact in texts:
                both += 1
                assert {fact.sentence for fact in facts} <= set(texts)
    assert both > 50


@pytest.mark.parametrize("query", ["", "nonsense", "who is Brol Tan", "colour of Brol Tan", "mentor of Brol", "mentor of Brol Tan Kes"])
def test_a_query_that_cannot_be_read_finds_nothing(query: str) -> None:
    assert ask(world_of(0), query) == []


def test_an_unknown_entity_gets_distractors_and_no_answer() -> None:
    world = world_of(0)
    before = list(world.graph.facts)
    shown = ask(world, "mentor of Kel Zzz")
    assert len(shown) == K
    assert world.graph.facts == before


def test_facts_come_into_being_once_and_fit_their_types() -> None:
    world = world_of(5, "chain", 1)
    subject = world.question.gold.chain[0].subject
    for relation in RELATIONS_OF[world.types[subject]]:
        ask(world, f"{relation} of {subject}")
    for fact in world.graph.facts:
        assert (world.types[fact.subject], world.types[fact.object]) == RELATIONS[fact.relation]


def test_the_retriever_answers_each_query_in_order() -> None:
    world, twin = world_of(7), world_of(7)
    queries = [hop.query for hop in world.question.gold.chain]
    found = asyncio.run(ThrowawayRetriever(world).search(queries, 3))
    assert found == [ask(twin, query, 3) for query in queries]
