"""What DeepSpeed is asked for."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rolecast.learner.backends import BUCKET
from rolecast.learner.settings import BackendConfig
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
