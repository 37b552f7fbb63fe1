"""A role that a method has under some setting speaks in its teacher's episodes, so that SFT can show it; one that never does has no share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from rolecast.config import RunConfig, load_config
from rolecast.errors import InputError
from rolecast.methods.base import Method
from rolecast.methods.decomposer import Decomposer
from rolecast.methods.registry import find, known, make_method
from rolecast.rollout.render import Renderer
from rolecast.stage_settings import SftConfig
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import PATIENCE, draw_turns, throwaway_episode
from rolecast.types import Trajectory, endpoint_of
from rolecast.world.throwaway import REPORTS
from rolecast.world.tokenizer import demo_tokenizer

EPISODES = 100  # in which each role has spoken


def preset(name: str) -> RunConfig:
    return load_config(Path(str(find(name).preset())))


def variants() -> Iterator[tuple[str, str, Any]]:
    """Each value of each setting that is one of a few, by itself."""
    for name in known():
        if not (find(name).trained and find(name).presets):
            continue
        for field, told in find(name).config_type.model_fields.items():
            few = get_args(told.annotation) if get_origin(told.annotation) is Literal else (True, False) * (told.annotation is bool)
            yield from ((name, field, value) for value in few if field not in ("name", "prompts"))


def varied(config: RunConfig, field: str, value: Any) -> Method | None:
    try:
        return make_method(type(config.method).model_validate({**config.method.model_dump(), field: value}))
    except ValidationError:  # two settings that exclude each other
        return None


@pytest.mark.parametrize(("name", "field", "value"), variants())
def test_every_role_speaks(name: str, field: str, value: Any) -> None:
    config = preset(name)
    method = varied(config, field, value)
    if method is None:
        return
    [errors, *_] = [stage.errors for stage in config.stages.values() if isinstance(stage, SftConfig)]
    mute = {role.name for role in method.roles.values() if role.slot != "frozen" and endpoint_of(role.slot) is None}
    renderer, teacher = Renderer(demo_tokenizer(method.words, method.tags), method.tags), method.teacher(errors)
    for number in range(EPISODES):
        played = throwaway_episode(method, teacher, renderer, 0, number, 4096, config.data.thrown_away)
        mute -= {thread.role for thread in played.threads}
        if not mute:
            return
    raise AssertionError(f"{', '.join(sorted(mute))} never spoke")


def test_plans_of_every_kind_have_the_same_vocabulary() -> None:
    """What was trained with one goes on with it."""
    config = preset("decomposer").method
    kinds = [{}, {"structure": "linear"}, {"turns": 1}, {"structure": "linear", "turns": 1}]
    tags = [make_method(type(config).model_validate({**config.model_dump(), **options})).tags for options in kinds]
    assert all(found == tags[0] for found in tags)


@pytest.mark.parametrize(("mix", "refused"), [
    ({"planner": 0.5, "writer": 0.5}, False), ({"answerer": 0.0, "planner": 0.5, "writer": 0.5}, False),
    ({"planner": 0.5, "answerer": 0.1, "writer": 0.4}, True),
])  # fmt: skip
def test_a_share_of_nothing_may_be_any_role_s(mix: dict[str, float], refused: bool) -> None:
    given = {"method": {"name": "decomposer", "structure": "linear"}, "stages": {"sft": {"mix": mix}}}
    if refused:
        with pytest.raises(ValidationError, match="decomposer has no role 'answerer'; it has planner, reviser, writer"):
            RunConfig.model_validate(given)
        return
    config = RunConfig.model_validate(given)
    method = make_method(config.method)
    renderer = Renderer(demo_tokenizer(method.words, method.tags), method.tags)
    rows = draw_turns(method, method.teacher(TeacherErrors()), renderer, 0, 0, 9, mix, 4096, REPORTS)  # 9 is odd: one row is left over
    assert {row.tag for row in rows} == {"planner", "writer"}


def test_variants_are_found() -> None:
    assert ("decomposer", "structure", "linear") in set(variants())
    assert ("mask", "knowledge", False) in set(variants())


@pytest.mark.parametrize(("options", "roles"), [
    ({"structure": "linear"}, ["planner", "reviser", "writer"]),
    ({"turns": 1}, ["planner", "answerer", "writer"]),
    ({"structure": "linear", "turns": 1}, ["planner", "writer"]),
])  # fmt: skip
def test_decomposer_has_the_roles_that_its_plans_need(options: dict[str, Any], roles: list[str]) -> None:
    config = preset("decomposer").method
    method = make_method(type(config).model_validate({**config.model_dump(), **options}))
    assert list(method.roles) == roles
    for stage in method.schedule():
        assert set(stage.silent) <= set(roles)
        assert set(stage.slots) <= set(roles)


def test_a_share_for_a_role_that_never_speaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = preset("decomposer").method
    method = make_method(type(config).model_validate({**config.model_dump(), "structure": "linear"}))
    assert isinstance(method, Decomposer)
    renderer = Renderer(demo_tokenizer(method.words, method.tags), method.tags)
    played = [throwaway_episode(method, method.teacher(TeacherErrors()), renderer, 0, 0, 4096, REPORTS)]

    def again(*_: Any, **__: Any) -> Trajectory:
        played.append(played[0])
        return played[0]

    monkeypatch.setattr("rolecast.teachers.examples.throwaway_episode", again)
    with pytest.raises(
        InputError, match=f"in {PATIENCE} episodes in a row its teacher DecomposerTeacher never spoke as answerer; give roles"
    ):
        draw_turns(method, method.teacher(TeacherErrors()), renderer, 0, 0, 32, {"writer": 0.5, "answerer": 0.5}, 4096, REPORTS)
    assert PATIENCE < len(played) < PATIENCE + 32
