"""Throw-away worlds of the crowded kind: one question each, and results as the index would give them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from rolecast.retriever.bm25 import BM25
from rolecast.seeding import stream
from rolecast.types import Hop
from rolecast.world import throwaway_crowded
from rolecast.world.crowded import SLOTS, build_crowded_world
from rolecast.world.grammar import facts_in, sentences
from rolecast.world.throwaway import CROWDED, ThrowawayRetriever, ThrowawayWorld, draw_throwaway
from rolecast.world.throwaway_crowded import ThrowawayCrowd, draw_crowded

K = 5


def world_of(number: int, kind: str = "chain", facts: int = 2) -> ThrowawayCrowd:
    return ThrowawayCrowd(stream("test", number), kind, facts)


@pytest.mark.parametrize("number", range(4))
def test_an_episode_is_a_function_of_its_stream(number: int) -> None:
    one, two = (draw_throwaway(stream(0, "throwaway", number), CROWDED) for _ in range(2))
    assert one.question == two.question
    for hop in one.question.gold.chain:
        assert one.passages(hop.query, K) == two.passages(hop.query, K)


@pytest.mark.parametrize(("kind", "of"), [("counterfactual", ThrowawayWorld), ("facts", ThrowawayWorld), ("crowded", ThrowawayCrowd)])
def test_the_kind_of_the_runs_world_decides(kind: str, of: type) -> None:
    assert isinstance(draw_throwaway(stream(0, "throwaway", 0), kind), of)


def test_without_a_kind_the_draws_are_those_of_the_demo() -> None:
    one, two = draw_throwaway(stream(0, "throwaway", 3)), draw_throwaway(stream(0, "throwaway", 3), "counterfactual")
    assert one.question == two.question


def test_questions_are_drawn_as_the_slots_have_them() -> None:
    tries = 1200
    drawn = Counter((q.type, q.hops) for number in range(tries) if (q := draw_crowded(stream(1, "kinds", number)).question))
    for slot, count in Counter(SLOTS).items():
        assert drawn[slot] / tries == pytest.approx(count / len(SLOTS), abs=0.03)


@pytest.mark.parametrize(("kind", "facts"), sorted(set(SLOTS)))
def test_a_gold_query_finds_its_passage_and_what_is_not_stated_is_not_found(kind: str, facts: int) -> None:
    hits, asked = 0, 0
    for number in range(40):
        world = world_of(number, kind, facts)
        question = world.question
        assert (question.type, question.hops, len(question.gold.chain)) == (kind, facts, facts)
        for hop in question.gold.chain:
            found = world.passages(hop.query, K)
            assert len({p.text for p in found}) == len(found) <= K
            assert all(p.id == p.text for p in found)
            if hop.stated:
                asked += 1
                hits += hop.passage in [p.text for p in found]
            else:
                read = [fact for p in found for fact in facts_in(p.text)]
                assert not [fact for fact in read if (fact.relation, fact.subject) == (hop.relation, hop.subject)]
    assert hits >= 0.95 * asked


def shape(results: Sequence[tuple[Hop, list[str]]]) -> dict[str, float]:
    """Of results that are in no random order: where the gold fact is, and what is beside it."""
    count = Counter[str]()
    for hop, texts in results:
        said = [sentence for text in texts for sentence in sentences(text)]
        count["first"] += hop.fact in sentences(texts[0])
        count["found"] += hop.fact in said
        count["sentences"] += len(said)
        count["rivals"] += sum(s.startswith(f"The {hop.relation} of ") and s != hop.fact for s in said)
        count["of the entity"] += sum(f" of {hop.subject} " in s for s in said)
        count["outdated"] += any(s.startswith(f"The {hop.relation} of {hop.subject} was ") for s in said)
    return {name: total / len(results) for name, total in count.items()}


def test_results_are_shaped_like_the_indexs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that several passages state what is asked of near-names, or what was so before: what is kept decides."""
    monkeypatch.setattr(throwaway_crowded, "SHUFFLED", 0.0)
    made = build_crowded_world(0, {"train": 5600, "test": 900}, {"train": 0, "test": 200})
    index = BM25.build([p.text for p in made.passages])
    theirs = shape(
        [
            (hop, [made.passages[row].text for row in index.rank(hop.query, K)[0]])
            for question in made.questions["test"]
            for hop in question.gold.chain
            if hop.stated
        ]
    )
    worlds = [draw_crowded(stream("shape", number)) for number in range(200)]
    asked = [(world, hop) for world in worlds for hop in world.question.gold.chain if hop.stated]
    ours = shape([(hop, [p.text for p in world.passages(hop.query, K)]) for world, hop in asked])
    assert ours == {name: pytest.approx(value, rel=0.2) for name, value in theirs.items()}
    assert theirs["found"] == 1
    assert theirs["rivals"] > 1.5
    assert theirs["outdated"] > 0.25


def test_some_results_are_in_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(tries: int) -> float:
        """Share of results in which the gold fact comes fourth or fifth."""
        worlds = [world_of(number) for number in range(tries)]
        firsts = [(world, world.question.gold.chain[0]) for world in worlds]
        return sum(hop.passage in [p.text for p in world.passages(hop.query, K)[3:]] for world, hop in firsts) / tries

    assert last(600) == pytest.approx(2 / K * throwaway_crowded.SHUFFLED, abs=0.05)
    monkeypatch.setattr(throwaway_crowded, "SHUFFLED", 0.0)
    assert last(200) < 0.03


@pytest.mark.parametrize("query", ["", "nonsense", "of is the was"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert world_of(0).passages(query, K) == []


def test_the_retriever_answers_each_query_in_order() -> None:
    world, twin = world_of(7), world_of(7)
    queries = [hop.query for hop in world.question.gold.chain]
    found = asyncio.run(ThrowawayRetriever(world).search(queries, 3))
    assert found == [twin.passages(query, 3) for query in queries]
