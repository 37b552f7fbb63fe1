"""Episodes in which the teacher makes none of its errors: how many, which, and that the others stay as they are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, load_config, make_config
from rolecast.methods.base import Method
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.methods.registry import find, known, make_method
from rolecast.rollout.render import Renderer
from rolecast.stages.sft import draw_block
from rolecast.teachers import examples
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.teachers.examples import draw_turns, is_faultless, throwaway_episode
from rolecast.types import Example, Trajectory
from rolecast.world.throwaway import COUNTERFACTUAL, REPORTS
from rolecast.world.tokenizer import demo_tokenizer

ALWAYS = TeacherErrors(**{error: 1.0 for error in TeacherErrors.model_fields if error != "faultless"})
NEVER_WRONG = {"cot", "direct", "naive_rag"}  # their teachers decide nothing
DECOR = Decor(DecorConfig(prompts="compact", max_tokens=48, condenser="extractive"))


def rows(method: Method, errors: TeacherErrors, renderer: Renderer, count: int = 120) -> list[Example]:
    world = REPORTS if method.name == "decomposer" else COUNTERFACTUAL
    return draw_turns(method, method.teacher(errors), renderer, 0, 3, count, {}, 2048, world, faultless=errors.faultless)


@pytest.mark.parametrize("name", known())
def test_no_methods_teacher_makes_any_of_its_errors(name: str) -> None:
    method = make_method(find(name).config_type(name=name, prompts="compact"))
    renderer = Renderer(demo_tokenizer(method.words, method.tags), method.tags)
    sound = rows(method, TeacherErrors(), renderer)
    assert rows(method, ALWAYS.model_copy(update={"faultless": 1.0}), renderer) == sound
    assert (rows(method, ALWAYS, renderer) == sound) == (name in NEVER_WRONG)


class Episodes:
    """What `draw_turns` plays, and with which streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.played: dict[int, Trajectory] = {}
        self.streams: set[object] = set()
        stream = examples.stream

        def play(method: Method, teacher: Teacher, renderer: Renderer, seed: int, number: int, *rest: Any) -> Trajectory:
            self.played[number] = throwaway_episode(method, teacher, renderer, seed, number, *rest)
            return self.played[number]

        def named(*key: object) -> random.Random:
            self.streams.add(key[1])
            return stream(*key)

        monkeypatch.setattr(examples, "throwaway_episode", play)
        monkeypatch.setattr(examples, "stream", named)


def said(t: Trajectory) -> list[tuple[int, ...]]:
    return [thread.ids for thread in t.threads]


def test_the_share_is_of_episodes_and_the_others_are_as_without_it(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Episodes(monkeypatch)
    errors = TeacherErrors(stop_early=1.0, faultless=0.3)
    rows(DECOR, errors, renderer, 3200)
    longer = {number: t for number, t in seen.played.items() if t.question.hops > 1}
    assert len(longer) > 250
    whole = {number for number, t in longer.items() if t.searches > 1}  # who always stops early searches once
    assert len(whole) / len(longer) == pytest.approx(0.3, abs=0.07)
    assert whole == {number for number in longer if is_faultless(0, number, 0.3)}
    erring = DECOR.teacher(TeacherErrors(stop_early=1.0))
    for number in sorted(longer.keys() - whole)[:40]:
        assert said(longer[number]) == said(throwaway_episode(DECOR, erring, renderer, 0, number, 2048))


def test_by_default_nothing_is_drawn_and_rows_are_the_episodes_turns_in_their_order(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Episodes(monkeypatch)
    errors = TeacherErrors(stop_early=0.5, wrong_relation=0.3)
    drawn = rows(DECOR, errors, renderer)
    assert seen.streams == {"throwaway"}
    played = [throwaway_episode(DECOR, DECOR.teacher(errors), renderer, 0, number, 2048) for number in sorted(seen.played)]
    assert drawn == [examples.example_of(thread) for t in played for thread in t.threads][: len(drawn)]
    rows(DECOR, errors.model_copy(update={"faultless": 0.5}), renderer)
    assert seen.streams == {"throwaway", "faultless"}


def test_which_episodes_is_a_matter_of_seed_and_number() -> None:
    chosen = [[is_faultless(seed, number, 0.3) for number in range(4000)] for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert [sum(found) / 4000 for found in chosen] == pytest.approx([0.3] * 3, abs=0.03)
    assert not any(is_faultless(0, number, 0.0) for number in range(200))
    assert all(is_faultless(0, number, 1.0) for number in range(200))


def config_of(**errors: float) -> RunConfig:
    scratch = {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "feed_forward": 16}
    method = {"name": "decor", "prompts": "compact"}
    return make_config({"method": method, "model": {"scratch": scratch}, "stages": {"sft": {"batch": 2, "errors": errors}}}, "here")


def test_sft_draws_by_the_share_of_its_settings_and_blocks_stay_functions_of_their_number(renderer: Renderer) -> None:
    def block(number: int, **errors: float) -> list[list[Example]]:
        config = config_of(**errors)
        return draw_block(config, config.schedule[0], make_method(config.method), renderer, number)

    assert block(2, stop_early=1.0, faultless=1.0) == block(2) != block(2, stop_early=1.0)
    mixed = block(2, stop_early=1.0, faultless=0.5)
    assert mixed not in (block(2), block(2, stop_early=1.0))
    block(1, stop_early=1.0, faultless=0.5)
    assert block(2, stop_early=1.0, faultless=0.5) == mixed


@pytest.mark.parametrize("name", ["mask", "dac"])
def test_the_demos_first_stop_is_mostly_an_error_and_all_facts_are_often_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A greedy model then makes the error, for RL to mend, and has read what comes after it."""
    config = load_config(Path(str(find(name).preset())))
    method, errors = make_method(config.method), config.sft("sft").errors
    seen = Episodes(monkeypatch)
    rows(method, errors, Renderer(demo_tokenizer(method.words, method.tags), method.tags), 2400)
    needs = [t for t in seen.played.values() if t.question.hops > 1]
    assert sum(t.searches == 1 for t in needs) / len(needs) > 0.5
    late = [t for t in needs if t.question.hops == 4]
    assert len(late) > 30
    assert sum(t.searches >= 4 for t in late) / len(late) > 0.2
