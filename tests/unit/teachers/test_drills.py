"""Drills: what is shown is not trained, what is said follows from it."""

from __future__ import annotations

import random

from rolecast.rollout.render import Renderer
from rolecast.teachers.drills import FACTS, ROUNDS, draw_comparing, draw_crowded_reading, draw_drill, draw_intersecting, draw_reading
from rolecast.types import Example
from rolecast.world.grammar import DATED, LISTED, RELATIONS, YEARS, crowded_lexicon, facts_in, sentences
from rolecast.world.tokenizer import demo_tokenizer

CROWDED = Renderer(demo_tokenizer(crowded_lexicon()))


def parts(renderer: Renderer, row: Example) -> list[tuple[bool, str]]:
    """Runs of tokens that are trained, or not, decoded."""
    runs: list[tuple[bool, list[int]]] = []
    for token, trained in zip(row.ids, row.trained, strict=True):
        if not runs or runs[-1][0] != trained:
            runs.append((trained, []))
        runs[-1][1].append(token)
    return [(trained, renderer.decode(ids)) for trained, ids in runs]


def test_reading_says_every_fact_twice_and_trains_the_second_time(renderer: Renderer) -> None:
    inverse = 0
    for seed in range(20):
        [(read_trained, read), (said_trained, said)] = parts(renderer, draw_reading(renderer, random.Random(seed)))
        assert (read_trained, said_trained) == (False, True)
        facts = facts_in(read)
        assert len({(fact.relation, fact.subject) for fact in facts}) == FACTS
        assert sorted(map(str, facts)) == sorted(map(str, facts_in(said)))
        inverse += sum(f" {fact.inverse_query}: {fact.sentence}" in said for fact in facts)
    assert 10 < inverse < 50  # about 30 % of 100


def test_intersecting_says_the_name_that_comes_twice(renderer: Renderer) -> None:
    for seed in range(20):
        shown, *rounds = parts(renderer, draw_intersecting(renderer, random.Random(seed)))
        for (_, listed), (trained, answer) in zip([shown, *rounds[1::2]], rounds[0::2], strict=True):
            names = listed.removeprefix(" Which").removeprefix("<think> ").removesuffix("</think>").split(" and ")
            said = answer.removeprefix("<answer> ").removesuffix("</answer>")
            assert trained
            assert len(rounds) == 2 * ROUNDS - 1
            assert 2 <= len(names) <= 4
            assert names.count(said) == 2


def test_drills_are_of_both_kinds(renderer: Renderer) -> None:
    texts = [renderer.decode(draw_drill(renderer, random.Random(seed)).ids) for seed in range(60)]
    intersecting = sum(text.startswith(" Which<think>") for text in texts)
    assert 3 < intersecting < 25


def test_reading_in_a_crowd_says_nothing_of_what_was() -> None:
    outdated, kinds = 0, set[str]()
    for seed in range(20):
        [(_, read), (_, said)] = parts(CROWDED, draw_crowded_reading(CROWDED, random.Random(seed)))
        facts = facts_in(read)
        kinds |= {fact.relation for fact in facts}
        once = [sentence for sentence in sentences(read) if " was " in sentence]
        outdated += len(once)
        assert len(facts) == FACTS == len(sentences(read)) - len(once)
        assert sorted(map(str, facts)) == sorted(map(str, facts_in(said)))
        assert " was " not in said
        for sentence in once:  # of something that is otherwise now
            assert any(sentence.startswith(fact.sentence.partition(" is ")[0] + " was ") for fact in facts)
    assert 12 < outdated < 42  # of two thirds of 100, about 40 %
    assert set(kinds) == {*RELATIONS, *DATED.values(), *LISTED.values()}


def test_comparing_says_whose_year_is_the_earlier() -> None:
    firsts = 0
    for seed in range(20):
        shown, *rounds = parts(CROWDED, draw_comparing(CROWDED, random.Random(seed)))
        assert len(rounds) == 2 * ROUNDS - 1
        for (_, listed), (trained, answer) in zip([shown, *rounds[1::2]], rounds[0::2], strict=True):
            facts = facts_in(listed)
            years = {fact.subject: fact.object for fact in facts}
            said = answer.removeprefix("<answer> ").removesuffix("</answer>")
            assert trained
            assert set(years.values()) <= set(YEARS)
            assert years[said] == min(years.values()) < max(years.values())
            assert len({fact.relation for fact in facts} & set(DATED.values())) == 1
            firsts += facts[0].subject == said
    assert 70 < firsts < 130


def test_drills_are_like_the_runs_world() -> None:
    texts = [CROWDED.decode(draw_drill(CROWDED, random.Random(seed), "crowded").ids) for seed in range(60)]
    assert 3 < sum(text.startswith(" Whose<think>") for text in texts) < 25
    assert sum(" was " in text for text in texts) > 24
    assert not any(text.startswith(" Which") for text in texts)
    plain = [draw_drill(CROWDED, random.Random(seed)).ids for seed in range(60)]
    assert plain == [draw_drill(CROWDED, random.Random(seed), "facts").ids for seed in range(60)]
    assert not any(" was " in CROWDED.decode(ids) for ids in plain)
