"""The teachers' episodes on throw-away worlds: without errors they are right, and each error does what it says."""

from __future__ import annotations

from collections import defaultdict

import pytest

from rolecast.methods.decor import DecorConfig
from rolecast.methods.registry import make_method
from rolecast.methods.search_r1 import SearchR1Config
from rolecast.rewards.text import exact_match
from rolecast.rollout.render import Renderer
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Trajectory
from rolecast.world.grammar import crowded_lexicon, sentences
from rolecast.world.tokenizer import demo_tokenizer

RENDERER = Renderer(demo_tokenizer(crowded_lexicon()))
DECOR = DecorConfig(prompts="compact", max_turns=6, condenser="extractive", memory_tokens=512)
SEARCH_R1 = SearchR1Config(prompts="compact", max_turns=6, k=5, observation_tokens=400)


def episodes(config: DecorConfig | SearchR1Config, count: int, **errors: float) -> list[Trajectory]:
    method = make_method(config)
    teacher = method.teacher(TeacherErrors(**errors))
    return [throwaway_episode(method, teacher, RENDERER, 0, number, 2048, "crowded") for number in range(count)]


def right(played: list[Trajectory]) -> dict[str, float]:
    scores = defaultdict(list)
    for t in played:
        scores[t.question.type].append(exact_match(t.answer, t.question.gold.answers))
    return {kind: sum(found) / len(found) for kind, found in scores.items()}


@pytest.mark.parametrize("config", [DECOR, SEARCH_R1], ids=["decor", "search_r1"])
def test_without_errors_every_type_is_answered_in_a_crowd(config: DecorConfig | SearchR1Config) -> None:
    found = right(episodes(config, 300))
    assert set(found) == {"chain", "comparison", "intersection", "unanswerable"}
    assert all(share > 0.97 for share in found.values())


def test_who_stops_early_misses_what_takes_several_facts() -> None:
    found = right(episodes(DECOR, 300, stop_early=1.0))
    assert found["comparison"] == found["intersection"] == found["chain"] == 0
    assert 0 < found["unanswerable"] < 0.6  # those that a first search settles


def test_distractors_that_are_kept_may_be_outdated() -> None:
    kept = [
        sentence
        for t in episodes(DECOR, 100, keep_distractors=1.0)
        for thread in t.threads_of("filter")
        for sentence in sentences(thread.actions[0].text.split("<filter>")[1].split("</filter>")[0])
    ]
    outdated = sum(" was " in sentence for sentence in kept) / len(kept)
    assert 0.05 < outdated < 0.5


def test_a_team_has_room_where_one_transcript_has_none() -> None:
    """At the context that search_r1's presets have."""
    team, alone = (
        [max(len(thread.ids) for thread in t.threads) for t in episodes(config, 150) if t.searches > 3] for config in (DECOR, SEARCH_R1)
    )
    assert max(team) < 384
    assert sum(longest > 512 for longest in alone) / len(alone) > 0.9
