"""What a stage's own settings change of its method."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.schedule import find
from rolecast.stages.rl import anchored
from rolecast.types import KlTerm, Objective


def config(**rl: object) -> RunConfig:
    return make_config({"method": {"name": "decor", "max_tokens": 100}, "stages": {"rl": rl}}, "here")


def test_replies_are_as_long_as_their_stage_lets_them_be() -> None:
    c = config(lengths={"planner": 30})
    assert {name: role.max_tokens for name, role in c.method_in(find(c.schedule, "rl")).roles.items() if name != "condenser"} == {
        "planner": 30, "filter": 100, "answerer": 100,
    }  # fmt: skip
    assert c.method_in(find(c.schedule, "sft")).roles["planner"].max_tokens == 100


def test_lengths_of_roles_that_the_method_does_not_have_are_refused() -> None:
    with pytest.raises(InputError, match=r"stages.rl.lengths: decor has no role 'judge'; it has planner"):
        config(lengths={"judge": 3})


def test_roles_speak_with_the_slots_of_the_stage() -> None:
    c = config()
    stage = replace(find(c.schedule, "rl"), slots={"planner": "p"})
    assert {name: role.slot for name, role in c.method_in(stage).roles.items()} == {
        "planner": "p", "filter": "shared", "answerer": "shared", "condenser": "frozen",
    }  # fmt: skip


def test_roles_are_silent_in_the_stages_own_episodes_alone() -> None:
    c = config()
    cast = c.method_in(replace(find(c.schedule, "rl"), silent=("answerer",)))
    assert cast.silent == {"answerer"}
    assert cast.whole().silent == c.method_in(find(c.schedule, "rl")).silent == frozenset()
    assert cast.silent == {"answerer"}
    assert cast.whole().roles == cast.roles


@pytest.mark.parametrize(("kl", "expected"), [(None, 0.1), (0.5, 0.5), (0.0, None)])
def test_a_stages_kl_takes_the_place_of_the_methods(kl: float | None, expected: float | None) -> None:
    first, second = anchored([Objective("a", "s", 1e-3, kl=KlTerm(0.1)), Objective("b", "s", 1e-3)], kl)
    assert (first.kl and first.kl.coefficient) == expected
    assert second.kl is None
