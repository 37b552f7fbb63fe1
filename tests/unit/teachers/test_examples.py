"""Rows of a teacher: of the roles that are trained, and only what the method itself can read."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rolecast.errors import InputError
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.methods.search_r1 import SearchR1, SearchR1Config
from rolecast.rollout.render import Renderer
from rolecast.tags import tagged
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.teachers.examples import draw_turns
from rolecast.types import Example, Role, Stage, Trajectory

FORM = frozenset({"question", "memory"})


def rows(renderer: Renderer, method: Any, teacher: Teacher | None = None, **options: Any) -> list[Example]:
    return draw_turns(method, teacher or method.teacher(TeacherErrors()), renderer, 0, 0, 20, {}, 512, **options)


def decor(**options: Any) -> Decor:
    return Decor(DecorConfig(prompts="compact", max_tokens=64, **options))


def test_roles_that_are_not_trained_have_no_rows(renderer: Renderer) -> None:
    method = decor(condenser="extractive").in_stage(Stage("sft", "sft"), cast={"filter": "frozen"})
    assert {row.tag for row in rows(renderer, method, slots=["shared"])} == {"planner", "answerer"}
    assert {row.tag for row in rows(renderer, method)} == {"planner", "filter", "answerer"}


def test_decors_teacher_condenses_in_the_condensers_form(renderer: Renderer) -> None:
    found = rows(renderer, decor(memory_tokens=8))
    assert {row.tag for row in found} >= {"condenser", "filter"}


class Answerer:
    """Of another method: it answers whatever it is asked."""

    def reply(self, role: str, state: Any, episode: Trajectory, rng: random.Random) -> str:
        return tagged("answer", "yes")


def test_a_teacher_that_the_method_cannot_read_is_refused(renderer: Renderer) -> None:
    with pytest.raises(
        InputError, match="method decor: as planner its teacher Answerer says '<answer> yes</answer>', which the method cannot read"
    ):
        rows(renderer, decor(), Answerer())


def test_what_a_frozen_role_is_made_to_say_is_nobodys_example(renderer: Renderer) -> None:
    class Mute(Answerer):
        def reply(self, role: str, state: Any, episode: Trajectory, rng: random.Random) -> str:
            return "" if role == "condenser" else teacher.reply(role, state, episode, rng)

    method = decor(memory_tokens=8)
    teacher = method.teacher(TeacherErrors())
    assert rows(renderer, method, Mute(), slots=["shared"])
    with pytest.raises(InputError, match="as condenser"):
        rows(renderer, method, Mute())


class Checked(SearchR1):
    """A newcomer's: a role more, and the teacher of the class that it is made from."""

    def __init__(self, config: SearchR1Config) -> None:
        super().__init__(config)
        self.roles["checker"] = Role("checker", frozenset({"question"}), ("</answer>",), 32)


class Taught(Checked):
    def teacher(self, errors: TeacherErrors) -> Teacher:
        return super().teacher(errors)


def test_an_inherited_teacher_does_not_speak_for_a_role_that_it_does_not_know(renderer: Renderer) -> None:
    config = SearchR1Config(prompts="compact")
    with pytest.raises(
        InputError, match=r"method search_r1 has the teacher of search_r1, which does not know its role checker; write Checked\.teacher"
    ):
        rows(renderer, Checked(config))
    assert rows(renderer, Taught(config))
    assert rows(renderer, Checked(config).in_stage(Stage("sft", "sft"), cast={"checker": "frozen"}), slots=["shared"])


def test_an_inherited_teacher_of_the_same_roles_is_taken(renderer: Renderer) -> None:
    class Shorter(SearchR1):
        pass

    assert rows(renderer, Shorter(SearchR1Config(prompts="compact", max_turns=1)))
