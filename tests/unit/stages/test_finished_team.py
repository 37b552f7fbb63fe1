"""Who speaks in a stage that has ended, on a machine that has nothing of the run yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.methods.registry import make_method
from rolecast.stages.run import Run
from rolecast.stages.team import finished_team
from rolecast.store.artifact import writing
from rolecast.store.local import LocalStore
from rolecast.types import Slot
from rolecast.weights.canary import canary
from tests.tiny import TOKENIZER, tiny_model

SEEDS = {"sft": 1, "rl": 2}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Elsewhere, of a method with a frozen role."""
    store = LocalStore(tmp_path / "store")
    trained = Run(tmp_path / "learner", RunConfig(), store)
    for stage, seed in SEEDS.items():
        with writing(trained.model(stage), "model", {}) as partial:
            tiny_model(seed, scale=5.0).save_pretrained(partial)
            TOKENIZER.save_pretrained(partial)
        trained.publish(trained.model(stage))
    return Run(tmp_path / "elsewhere", RunConfig(), store)


def spoken(run: Run, stage: str) -> dict[Slot, tuple[float, ...]]:
    method = make_method(run.config.method)
    [found] = [one for one in method.schedule() if one.name == stage]
    _, speakers = finished_team(run, method, found)
    return {slot: canary(speaker(), TOKENIZER).logprobs for slot, speaker in speakers.items()}


def of(stage: str) -> tuple[float, ...]:
    return canary(tiny_model(SEEDS[stage], scale=5.0), TOKENIZER).logprobs


def test_after_rl_the_frozen_role_is_what_it_was_in_training(run: Run) -> None:
    found = spoken(run, "rl")
    assert found["shared"] == pytest.approx(of("rl"))
    assert found["frozen"] == pytest.approx(of("sft"))


def test_after_sft_every_role_is_the_model(run: Run) -> None:
    found = spoken(run, "sft")
    assert found["shared"] == found["frozen"] == pytest.approx(of("sft"))
    assert not run.model("rl").exists()  # only what is needed is fetched


def test_a_frozen_role_whose_model_is_gone_is_named(run: Run) -> None:
    assert run.store is not None
    run.store.delete("sft/model")
    with pytest.raises(InputError, match="has no sft model yet"):
        spoken(run, "rl")
