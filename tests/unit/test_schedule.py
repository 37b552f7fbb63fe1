"""A method's schedule: found by name, and refused where no run could go through it."""

from __future__ import annotations

import pytest

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.methods.registry import make_method
from rolecast.schedule import check, find, last
from rolecast.types import Objective, Stage, ValueTerm

SFT = Stage("sft", "sft", objectives=(Objective("o", "shared", 1e-3),), merges=("shared",))
RL = Stage("rl", "rl", "sft", (Objective("o", "shared", 1e-3),), merges=("shared",))


def test_a_stage_is_found_by_its_name() -> None:
    assert find((SFT, RL), "rl") is RL
    assert last((SFT, RL)) == "rl"
    with pytest.raises(InputError, match="no stage 'eval' in the method's schedule; it has sft, rl"):
        find((SFT, RL), "eval")
    with pytest.raises(InputError, match="no stage 'sft' in the method's schedule; it is not trained"):
        find((), "sft")
    with pytest.raises(InputError, match="is not trained"):
        last(())


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ((SFT, SFT), "'sft' is there twice"),
        ((RL, SFT), "'rl' starts from 'sft', which does not come before it"),
        ((Stage("rl", "rl", "rl"),), "'rl' starts from 'rl'"),
        ((Stage("sft", "sft", merges=("shared",)),), "merges 'shared', which it does not train"),
        ((Stage("rl", "rl", objectives=(Objective("o", "a", 1e-3, critic=ValueTerm("a", 1e-3)),)),), "has 'a' as a policy and as a critic"),
    ],
)
def test_a_schedule_that_no_run_could_go_through_is_refused(stages: tuple[Stage, ...], reason: str) -> None:
    check((SFT, RL))
    with pytest.raises(ValueError, match=reason):
        check(stages)


@pytest.mark.parametrize("method", ["decor", "search_r1", "naive_rag", "direct"])
def test_every_methods_schedule_is_sound(method: str) -> None:
    check(make_method(RunConfig.model_validate({"method": {"name": method}}).method).schedule())
