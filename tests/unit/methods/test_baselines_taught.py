"""The untrained baselines as controls: what their teachers play on throw-away worlds, and a whole tiny run of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from canaries import method_of

from rolecast.config import make_config
from rolecast.methods.base import Method
from rolecast.rewards.text import exact_match
from rolecast.rollout.render import Renderer
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.run import create
from rolecast.stages.train import train
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Trajectory
from rolecast.world.grammar import facts_in
from rolecast.world.tokenizer import demo_tokenizer

EPISODES = 200
# Of EPISODES, how many a teacher without errors must answer right. `cot` knows the gold; a search may miss, most often one with a
# whole sentence.
SOUND = {"cot": 200, "react": 190, "autorefine": 190, "search_o1": 190, "ircot": 145}


def renderer_of(method: Method) -> Renderer:
    return Renderer(demo_tokenizer(method.words, method.tags), method.tags)


@cache
def taught(name: str, **errors: float) -> list[Trajectory]:
    method = method_of(name, "compact", **({} if name == "cot" else {"k": 5}))
    teacher, renderer = method.teacher(TeacherErrors(**errors)), renderer_of(method)
    return [throwaway_episode(method, teacher, renderer, 0, number, 512) for number in range(EPISODES)]


def right(episodes: list[Trajectory]) -> int:
    return sum(bool(exact_match(t.answer, t.question.gold.answers)) for t in episodes)


@pytest.mark.parametrize("name", SOUND)
def test_a_teacher_without_errors_is_right_and_always_read(name: str) -> None:
    episodes = taught(name)
    assert right(episodes) >= SOUND[name]
    assert {t.status for t in episodes} == {"ok"}
    assert all(action.valid for t in episodes for action in t.actions)


SEARCHING = ("react", "autorefine", "search_o1", "ircot")


@pytest.mark.parametrize("name", SEARCHING)
def test_stopping_early_costs_searches_and_answers(name: str) -> None:
    whole, early = taught(name), taught(name, stop_early=0.7)
    assert sum(t.searches for t in early) < 0.8 * sum(t.searches for t in whole)
    assert right(early) < right(whole) - 15


@pytest.mark.parametrize("name", SEARCHING)
def test_wrong_relations_are_asked_for(name: str) -> None:
    assert sum(map(_strays, taught(name))) == 0
    assert sum(map(_strays, taught(name, wrong_relation=0.3))) > 20


def _strays(t: Trajectory) -> int:
    """Queries that name no relation of the chain."""
    state = next(reversed(t.states.values()))
    queries = [q for q in getattr(state, "queries", getattr(state, "reasoning", [])) if "answer is" not in q]
    return sum(not any(hop.relation in query for hop in t.question.gold.chain) for query in queries)


KEEPERS: dict[str, Callable[[Trajectory], list[str]]] = {
    "autorefine": lambda t: [a.text.partition("</refine>")[0] for a in t.actions if "<refine>" in a.text],
    "search_o1": lambda t: [a.text for thread in t.threads_of("reader") for a in thread.actions],
}


@pytest.mark.parametrize("name", KEEPERS)
def test_distractors_are_kept_at_their_rate(name: str) -> None:
    def surplus(episodes: list[Trajectory]) -> float:
        kept = [len(facts_in(text)) for t in episodes for text in KEEPERS[name](t)]
        return sum(count >= 3 for count in kept) / len(kept)

    assert surplus(taught(name)) < 0.1
    assert 0.2 < surplus(taught(name, keep_distractors=0.4)) < 0.6


TINY = {
    "name": "tiny", "lockstep": True, "threads": 1,
    "model": {"max_context": 384, "scratch": {"hidden": 32, "layers": 1, "heads": 2, "head_dim": 16, "feed_forward": 64}},
    "data": {"world": {"entities": {"train": 60, "dev": 30, "test": 60}, "questions": {"train": 8, "dev": 2, "test": 6}}},
    "stages": {"sft": {"steps": 6, "batch": 4, "lr": 1e-2}}, "eval": {"n": 6, "bootstrap": 100},
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_a_whole_tiny_run(name: str, tmp_path: Path) -> None:
    """Taught for a few steps and evaluated: every question counts, and a model that has learned nothing yet breaks no run."""
    options = {"max_tokens": 12} | ({"reader_tokens": 12} if name == "search_o1" else {})
    options |= {} if name == "cot" else {"k": 2, "max_turns": 2}
    run = create(tmp_path / "run", make_config({**TINY, "method": {"name": name, "prompts": "compact", **options}}, "here"))
    inputs(run)
    train(run, "sft")
    result = json.loads((evaluate(run, "sft") / "result.json").read_text())
    assert (result["n"], result["headline"]) == (6, "em")
    rows = [json.loads(line) for line in (run.stage("sft") / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["nll"] > 0
