"""What DeepSpeed is asked for, and what is said where it does nothing."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rolecast.learner.backends import BUCKET, DeepSpeedBackend, Training
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import BackendConfig, OptimizerConfig
from rolecast.weights.team import Casting
from tests.tiny import tiny_team
from tests.two_slots import ANSWERER, PLANNER, learner_of


@pytest.mark.parametrize("most", [BUCKET, 100])
def test_a_buffer_for_gradients_is_as_large_as_what_is_trained(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    asked: dict[str, Any] = {}

    def initialize(**given: Any) -> tuple[Any, ...]:
        asked.update(given["config"])
        return (SimpleNamespace(),)

    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(comm=SimpleNamespace(is_initialized=lambda: True), initialize=initialize))
    monkeypatch.setattr("rolecast.learner.backends.BUCKET", most)
    learner = learner_of(PLANNER, ANSWERER, backend=BackendConfig(name="deepspeed", zero=2))
    trained = sum(p.numel() for slot in ("planner", "answerer", "critic") for _, p in learner.team.trained(slot))
    assert asked["zero_optimization"]["reduce_bucket_size"] == min(trained, most)
    assert 100 < trained < BUCKET


def test_an_overflow_that_deepspeed_finds_itself_is_no_finite_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the optimizer alone then; what it was asked for stands in the groups."""

    def initialize(**given: Any) -> tuple[Any, ...]:
        return (SimpleNamespace(optimizer=SimpleNamespace(param_groups=given["optimizer"].param_groups), step=lambda: None),)

    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(comm=SimpleNamespace(is_initialized=lambda: True), initialize=initialize))
    team = tiny_team(Casting(frozenset({"planner", "answerer"}), ("planner", "answerer")))
    training = Training(OptimizerConfig(schedule="linear"), 0.1, 10)
    backend = DeepSpeedBackend(team, {"planner": training, "answerer": training}, BackendConfig(name="deepspeed", zero=2), ALONE)
    [(slot, norm)] = backend.step({"answerer": 4}).items()
    assert (slot, math.isnan(norm)) == ("answerer", True)
    planner, answerer = backend._engine.optimizer.param_groups
    assert (planner["active"], answerer["active"], answerer["lr"]) == (False, True, pytest.approx(0.05))
