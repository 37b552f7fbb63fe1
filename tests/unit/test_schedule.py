"""A method's schedule: found by name, and refused where no run could go through it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.methods.decor import Decor
from rolecast.methods.registry import describe, make_method
from rolecast.schedule import TAKEN, check, find, find_trained, keys_of, last, trained
from rolecast.types import Objective, Role, Stage, ValueTerm

SFT = Stage("sft", "sft", objectives=(Objective("o", "shared", 1e-3),), merges=("shared",))
RL = Stage("rl", "rl", "sft", (Objective("o", "shared", 1e-3),), merges=("shared",))
PLANS = Stage("plans", "rollout", "sft")
ONE, TWO = Objective("one", "a", 1e-3), Objective("two", "b", 2e-3)
ROLES = {name: Role(name, frozenset(), (), 8, slot) for name, slot in (("first", "a"), ("second", "b"))}


def test_a_stage_is_found_by_its_name() -> None:
    assert find((SFT, RL), "rl") is RL
    assert last((SFT, RL)) == "rl"
    with pytest.raises(InputError, match="no stage 'eval' in the method's schedule; it has sft, rl"):
        find((SFT, RL), "eval")
    with pytest.raises(InputError, match="no stage 'sft' in the method's schedule; it is not trained"):
        find((), "sft")
    with pytest.raises(InputError, match="is not trained"):
        last(())


def test_a_rollout_stage_has_no_model() -> None:
    assert trained((SFT, PLANS, RL)) == (SFT, RL)
    assert last((SFT, PLANS)) == "sft"
    assert find_trained((SFT, PLANS), "sft") is SFT
    with pytest.raises(InputError, match="stage plans prepares questions and has no model; stages with one: sft"):
        find_trained((SFT, PLANS), "plans")
    with pytest.raises(InputError, match="is not trained"):
        last((replace(PLANS, start=""),))


def test_questions_come_from_a_rollout_stage_before() -> None:
    check((SFT, PLANS, replace(RL, data="plans"), replace(PLANS, name="more", data="plans")))
    check((replace(PLANS, start=""), replace(RL, start="", data="plans")))
    check((replace(PLANS, start=""), replace(SFT, data="plans")))


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ((SFT, PLANS, PLANS), "'plans' is there twice"),
        ((SFT, PLANS, replace(SFT, name="plans")), "'plans' is there twice"),
        (
            (SFT, PLANS, replace(RL, start="plans")),
            "'rl' starts from 'plans', a rollout stage, which has no model of its own: start from 'sft'",
        ),
        (
            (SFT, replace(RL, data="plans"), PLANS),
            "'rl' has its questions from 'plans', which is no rollout stage before it; there are 'train'$",
        ),
        ((SFT, PLANS, replace(RL, data="sft")), "'rl' has its questions from 'sft', .* there are 'train', 'plans'"),
        ((SFT, PLANS, replace(RL, data="dev")), "'rl' has its questions from 'dev'"),
        ((SFT, replace(PLANS, data="plans")), "'plans' has its questions from 'plans'"),
        ((replace(SFT, data="plans"), PLANS), "'sft' has its questions from 'plans', which is no rollout stage before it"),
        ((SFT, replace(PLANS, name="train")), "'train' prepares questions, and 'train' in data are the run's own"),
        ((SFT, replace(PLANS, objectives=(ONE,))), "'plans' is of kind 'rollout', which trains nothing"),
        ((SFT, replace(PLANS, objectives=(ONE,), merges=("a",))), "'plans' is of kind 'rollout', which trains nothing"),
        ((SFT, SFT), "'sft' is there twice"),
        ((RL, SFT), "'rl' starts from 'sft', which does not come before it"),
        ((Stage("rl", "rl", "rl"),), "'rl' starts from 'rl'"),
        ((Stage("sft", "sft", merges=("shared",)),), "merges 'shared', which it does not train"),
        ((Stage("rl", "rl", objectives=(Objective("o", "a", 1e-3, critic=ValueTerm("a", 1e-3)),)),), "has 'a' as a policy and as a critic"),
        ((Stage("rl", "rl", objectives=(ONE, replace(TWO, name="one"))),), "has two objectives 'one'"),
        ((Stage("rl", "rl", objectives=(ONE, replace(ONE, name="two", lr=2e-3))),), "trains 'a' at rates 0.001, 0.002: a slot has one"),
        ((Stage("rl", "rl", objectives=(ONE, TWO), merges=("a", "b")),), "merges 'a' into the base that 'b' was trained over"),
        ((Stage("rl", "rl", objectives=(ONE, TWO), merges=("b",)),), "merges 'b' into the base that 'a' was trained over"),
        (
            (Stage("one", "rl", objectives=(ONE,)), Stage("two", "rl", "one", (TWO,), merges=("b",))),
            "'two' merges 'b' into the base that 'a'",
        ),
    ],
)
def test_a_schedule_that_no_run_could_go_through_is_refused(stages: tuple[Stage, ...], reason: str) -> None:
    check((SFT, RL))
    with pytest.raises(ValueError, match=reason):
        check(stages)


@pytest.mark.parametrize("method", ["decor", "search_r1", "naive_rag", "direct"])
def test_every_methods_schedule_is_sound(method: str) -> None:
    check(make_method(RunConfig.model_validate({"method": {"name": method}}).method).schedule())


@pytest.mark.parametrize("name", ["", "RL", "1st", "a-b", "a/b", "..", "_a", "a" * 25, "rl\n", "rl_", "a" * 23 + "_"])
def test_a_stage_has_the_name_of_a_folder(name: str) -> None:
    with pytest.raises(ValueError, match="is no name for a folder and a label"):
        check((Stage(name, "rl"),))


@pytest.mark.parametrize("name", TAKEN)
def test_names_of_other_things_in_a_run_are_taken(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' has the name of something else in a run's folder"):
        check((Stage(name, "rl"),))
    check((Stage(f"{name}_2", "rl"), Stage("a" * 24, "rl")))


def test_slots_go_beside_the_base_and_one_alone_goes_into_it() -> None:
    check((Stage("one", "sft", objectives=(ONE, TWO)), Stage("two", "rl", "one", (TWO,))))
    check((Stage("one", "sft", objectives=(ONE,), merges=("a",)), Stage("two", "rl", "one", (TWO,), merges=("b",))))
    check((Stage("one", "sft", objectives=(ONE,)), Stage("two", "rl", objectives=(TWO,), merges=("b",))))  # over another base


def test_slots_and_roles_of_a_stage_are_the_methods() -> None:
    check((Stage("one", "sft", objectives=(ONE, TWO)),), ROLES)
    check((Stage("one", "sft", objectives=(Objective("o", "c", 1e-3),), slots={"first": "c"}),), ROLES)
    with pytest.raises(ValueError, match="gives a slot to 'frist', which is no role; there are first, second"):
        check((Stage("one", "sft", objectives=(ONE,), slots={"frist": "a"}),), ROLES)
    with pytest.raises(ValueError, match="trains 'a', which no role speaks with in it"):
        check((Stage("one", "sft", objectives=(ONE,), slots={"first": "b"}),), ROLES)
    check((Stage("one", "rl", objectives=(ONE,), silent=("second",)),), ROLES)
    with pytest.raises(ValueError, match="trains 'a', which no role speaks with in it"):
        check((Stage("one", "rl", objectives=(ONE,), silent=("first",)),), ROLES)
    with pytest.raises(ValueError, match="does without 'frist', which is no role; there are first, second"):
        check((Stage("one", "rl", objectives=(ONE,), silent=("frist",)),), ROLES)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ((replace(RL, name="eval", start=""),), "method decor: stage 'eval' has the name of something else"),
        ((Stage("plans", "eval"),), "decor: stage 'plans' is of kind 'eval', which no stage can be"),  # type: ignore[arg-type]
        ((SFT, PLANS), "method decor: stage 'plans' prepares questions; say of what .Decor.prepare."),
    ],
)
def test_a_method_with_such_a_schedule_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, schedule: tuple[Stage, ...], reason: str
) -> None:
    monkeypatch.setattr(Decor, "schedule", lambda self: schedule)
    with pytest.raises(InputError, match=reason):
        make_config({"method": {"name": "decor"}}, "here")
    if schedule[0].kind == "rl":
        [row] = [row for row in describe() if row["name"] == "decor"]
        assert "'eval' has the name" in row["broken"]


def test_metrics_stand_under_an_objectives_name_where_there_are_several() -> None:
    assert keys_of(RL, "kl") == {"o": "kl"}
    assert keys_of(Stage("rl", "rl", objectives=(ONE, TWO)), "kl") == {"one": "one/kl", "two": "two/kl"}
