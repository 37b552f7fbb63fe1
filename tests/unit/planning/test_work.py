"""What a run does at most: numbers worked by hand, and bounds that episodes keep."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rolecast.config import RunConfig
from rolecast.methods.registry import find, known, make_method
from rolecast.planning.work import Work, work_of
from rolecast.rollout.render import Renderer
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Trajectory

WORLD = {"entities": {"train": 30, "dev": 30, "test": 30}, "questions": {"train": 40, "dev": 6, "test": 20}}
DECOR = {"name": "decor", "max_turns": 2, "max_tokens": 10, "condenser": "extractive"}


def works(method: dict[str, Any], **given: Any) -> dict[str, Work]:
    config = RunConfig.model_validate({"method": method, "data": {"world": WORLD}, **given})
    return {work.name: work for work in work_of(config)}


def test_decor_by_hand() -> None:
    """An episode of two turns: two queries, two filters, an answer; two searches; six verdicts. 3 steps of 2 × 4, drawn twice at most,
    and three dev evaluations (before, after step 2, at the end) of 5."""
    stages = {"sft": {"steps": 7, "batch": 3}, "rl": {"steps": 3, "questions": 2, "group": 4, "refill": 1, "dev": 5, "eval_every": 2}}
    found = works(DECOR, stages=stages, model={"max_context": 100}, eval={"n": 12})
    assert found["sft"] == Work("sft", "sft", 7, 0, 0, 0, 0, 0, 0, 7 * 3 * 100)
    episodes = 2 * 3 * 2 * 4 + 3 * 5
    rl = found["rl"]
    assert (rl.episodes, rl.replies, rl.sampled, rl.searches, rl.judged) == (episodes, *(episodes * each for each in (5, 50, 2, 6)))
    assert rl.trained == 3 * 2 * 4 * 5 * 100
    assert rl.counted == 48 * 50  # dev is no part of a budget
    assert (found["eval rl"].episodes, found["eval rl"].sampled) == (12, 12 * 50)


def test_a_budget_bounds_what_rl_samples() -> None:
    stages = {"rl": {"steps": 1000, "questions": 2, "group": 4, "refill": 0, "dev": 1, "eval_every": 1000}}
    whole, kept = works(DECOR, stages=stages), works(DECOR, stages=stages, budget=5000)
    step = 2 * 4 * 50
    assert whole["rl"].counted == 1000 * step
    assert kept["rl"].counted == 5000 + step  # it ends at the step that passes it
    assert whole["rl"].sampled is not None
    assert kept["rl"].sampled == whole["rl"].sampled - (1000 * step - 5000 - step)


def test_a_reply_is_no_longer_than_its_context() -> None:
    found = works({"name": "search_r1", "max_turns": 4, "max_tokens": 500}, model={"max_context": 600}, eval={"n": 1})
    assert (found["eval rl"].replies, found["eval rl"].sampled) == (5, 600)


def test_what_a_method_cannot_bound_is_not_made_up() -> None:
    found = works({"name": "decomposer"})
    assert found["answerer"].sampled is None
    assert found["answerer"].episodes > 0
    assert found["plans"].episodes == 40 + 6


def test_epochs_train_the_same_tokens_again() -> None:
    once, twice = (works({**DECOR, "epochs": epochs})["rl"].trained for epochs in (1, 2))
    assert once is not None
    assert twice == 2 * once


BOUNDED = [name for name in known() if find(name).__module__.startswith("rolecast.methods.") and name != "decomposer"]
# What a method's options bound, with the smallest numbers of turns, by hand: role → (contexts, replies in each), searches, verdicts.
BY_HAND: dict[str, tuple[dict[str, Any], dict[str, tuple[int, int]], int, int]] = {
    "decor": ({"max_turns": 3}, {"planner": (3, 1), "filter": (3, 1), "answerer": (1, 1), "condenser": (2, 1)}, 3, 8),
    "search_r1": ({"max_turns": 2}, {"searcher": (1, 3)}, 2, 0),
    "dac": ({"max_turns": 2}, {"searcher": (1, 2), "generator": (1, 1)}, 3, 0),
    "mask": ({"max_turns": 2}, {"planning": (1, 1), "search": (2, 1), "summary": (2, 1), "update": (2, 1), "answer": (1, 1)}, 2, 0),
    "coda": ({"max_turns": 3}, {"planner": (1, 3), "executor": (2, 3)}, 4, 0),
    "ircot": ({"max_turns": 2}, {"reasoner": (2, 1), "answerer": (1, 1)}, 3, 0),
    "search_o1": ({"max_turns": 2}, {"reasoner": (1, 3), "reader": (2, 1)}, 2, 0),
    "naive_rag": ({}, {"answerer": (1, 1)}, 1, 0),
    "direct": ({}, {"answerer": (1, 1)}, 0, 0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_an_episode_by_hand(name: str) -> None:
    options, said, searches, judged = BY_HAND[name]
    most = make_method(find(name).config_type(name=name, **options)).most
    assert most is not None
    assert {role: (spoken.contexts, spoken.replies) for role, spoken in most.said.items()} == said
    assert (most.searches, most.judged) == (searches, judged)


def test_probes_by_hand() -> None:
    """DAC: four other answers, an answer to each of two prefixes, five with noise. M-ASK: after every turn but the last."""
    dac, mask = (make_method(find(name).config_type(name=name, max_turns=2)).most for name in ("dac", "mask"))
    assert dac is not None
    assert mask is not None
    assert {role: spoken.contexts for role, spoken in dac.probes.items()} == {"generator": 4 + 2 + 5}
    assert {role: spoken.contexts for role, spoken in mask.probes.items()} == {"answer": 1}


def over(t: Trajectory, name: str, turns: dict[str, Any]) -> list[str]:
    """What an episode did more often than its method says it can."""
    most = make_method(find(name).config_type(name=name, prompts="compact", **turns)).most
    assert most is not None
    contexts = Counter(thread.role for thread in t.threads if not thread.probe)
    replies = {thread.role: max(len(other.actions) for other in t.threads_of(thread.role)) for thread in t.threads if not thread.probe}
    found = [role for role, count in contexts.items() if count > most.said[role].contexts or replies[role] > most.said[role].replies]
    return [*found, *(["searches"] if t.searches > most.searches else [])]


@pytest.mark.parametrize("name", BOUNDED)
def test_no_episode_of_a_teacher_passes_its_bound(name: str, renderer: Renderer) -> None:
    """The bound of so many turns holds; with one turn less some episode passes it, so it is no larger than it must be."""
    options = find(name).config_type.model_fields
    turns = {"max_turns": 2} if "max_turns" in options else {}
    method = make_method(find(name).config_type(name=name, prompts="compact", **turns))
    episodes = [throwaway_episode(method, method.teacher(TeacherErrors()), renderer, 0, number, 2048) for number in range(24)]
    assert [over(t, name, turns) for t in episodes] == [[]] * len(episodes)
    if turns:
        assert any(over(t, name, {"max_turns": 1}) for t in episodes)
