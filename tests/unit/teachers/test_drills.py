from __future__ import annotations

import random

from rolecast.rollout.render import Renderer
from rolecast.teachers.drills import FACTS, draw_drill
from rolecast.world.grammar import facts_in


def test_a_drill_says_every_fact_twice_and_trains_the_second_time(renderer: Renderer) -> None:
    for seed in range(20):
        row = draw_drill(renderer, random.Random(seed))
        read = renderer.decode([i for i, trained in zip(row.ids, row.trained, strict=True) if not trained])
        said = renderer.decode([i for i, trained in zip(row.ids, row.trained, strict=True) if trained])
        assert len(facts_in(read)) == FACTS
        assert sorted(map(str, facts_in(read))) == sorted(map(str, facts_in(said)))
        assert row.trained == (False,) * (len(row.ids) // 2) + (True,) * (len(row.ids) // 2)


def test_a_drill_asks_each_relation_of_a_name_once(renderer: Renderer) -> None:
    facts = facts_in(renderer.decode(draw_drill(renderer, random.Random(1)).ids))
    assert len({(fact.relation, fact.subject) for fact in facts}) == FACTS
