"""The teachers' episodes on throw-away worlds: without errors they are right, and each error does what it says."""

from __future__ import annotations

from collections import defaultdict

import pytest

from rolecast.methods.base import MethodConfig
from rolecast.methods.decor import DecorConfig
from rolecast.methods.registry import find, make_method
from rolecast.methods.search_r1 import SearchR1Config
from rolecast.rewards.text import exact_match
from rolecast.rollout.render import Renderer
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Trajectory
from rolecast.world.grammar import crowded_lexicon, sentences
from rolecast.world.tokenizer import demo_tokenizer

DECOR = DecorConfig(prompts="compact", max_turns=6, condenser="extractive", memory_tokens=512)
SEARCH_R1 = SearchR1Config(prompts="compact", max_turns=6, k=5, observation_tokens=400)


def episodes(config: MethodConfig, count: int, **errors: float) -> list[Trajectory]:
    method = make_method(config)
    teacher = method.teacher(TeacherErrors(**errors))
    renderer = Renderer(demo_tokenizer((*method.words, *crowded_lexicon()), method.tags))
    return [throwaway_episode(method, teacher, renderer, 0, number, 2048, "crowded") for number in range(count)]


def right(played: list[Trajectory]) -> dict[str, float]:
    scores = defaultdict(list)
    for t in played:
        scores[t.question.type].append(exact_match(t.answer, t.question.gold.answers))
    return {kind: sum(found) / len(found) for kind, found in scores.items()}


@pytest.mark.parametrize("name", ["decor", "search_r1", "mask", "coda", "dac", "autorefine", "react", "search_o1"])
def test_without_errors_every_type_is_answered_in_a_crowd(name: str) -> None:
    """Chains of six facts are left out: not every method may search so often."""
    found_type = find(name).config_type
    wanted = {"prompts": "compact", "max_turns": 7, "k": 5, "observation_tokens": 400}
    config = found_type(**{option: value for option, value in wanted.items() if option in found_type.model_fields})
    found = right([t for t in episodes(config, 40) if t.question.hops < 6])
    assert set(found) == {"chain", "comparison", "intersection", "unanswerable"}
    if name == "dac":
        del found["unanswerable"]  # half of its episodes are taught with a prompt that wants an answer
    assert all(share > 0.97 for share in found.values()), found


def test_who_stops_early_misses_what_takes_several_facts() -> None:
    found = right(episodes(DECOR, 100, stop_early=1.0))
    assert found["comparison"] == found["intersection"] == found["chain"] == 0
    assert 0 < found["unanswerable"] < 0.6  # those that a first search settles


def test_distractors_that_are_kept_may_be_outdated() -> None:
    kept = [
        sentence
        for t in episodes(DECOR, 40, keep_distractors=1.0)
        for thread in t.threads_of("filter")
        for sentence in sentences(thread.actions[0].text.split("<filter>")[1].split("</filter>")[0])
    ]
    outdated = sum(" was " in sentence for sentence in kept) / len(kept)
    assert 0.05 < outdated < 0.5


def test_a_team_has_room_where_one_transcript_has_none() -> None:
    """At the context that search_r1's presets have."""
    team, alone = (
        [max(len(thread.ids) for thread in t.threads) for t in episodes(config, 50) if t.searches > 3] for config in (DECOR, SEARCH_R1)
    )
    assert max(team) < 384
    assert sum(longest > 512 for longest in alone) / len(alone) > 0.9
