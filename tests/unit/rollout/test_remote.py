"""A worker's team: adapters come over one base, which also plays the frozen roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rolecast.config import RunConfig
from rolecast.coordinator.leases import TeamVersion
from rolecast.learner.adapters import add_adapter, is_adapter
from rolecast.learner.backends import trained_weights
from rolecast.learner.checkpoint import save_model
from rolecast.learner.settings import LoraConfig
from rolecast.methods.decor import DecorConfig
from rolecast.rollout.remote import RemoteTeam
from rolecast.rollout.versions import KIND, CanaryError, canary, write_team
from rolecast.store.artifact import writing
from rolecast.store.local import LocalStore
from rolecast.types import Version
from rolecast.wire.coordinator import RunInfo
from tests.tiny import TOKENIZER, tiny_model

BASE = "sft/model"


def published(store: LocalStore, folder: Path, step: int, lora: bool, claim: float | None = None) -> tuple[TeamVersion, Any]:
    """A version whose weights are moved by its step; `claim` writes another step's canary."""
    model = tiny_model(scale=5.0)
    if lora:
        add_adapter(model, "shared", LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or (not lora and "down_proj" in name):
                parameter += 0.05 * step
    version = Version("run", 1, step, BASE, {"shared": "shared" if lora else None})
    made, key = folder / str(version).replace("/", "-"), f"versions/0001.{step:06d}"
    with writing(made, KIND, {"version": str(version)}) as partial:
        write_team(model, TOKENIZER, version, trained_weights(model), partial, folder / "base")
        if claim is not None:
            text = (partial / "team.json").read_text()
            first = str(canary(model, TOKENIZER).logprobs[0])
            assert first in text
            (partial / "team.json").write_text(text.replace(first, str(claim)))
    store.publish(made, key)
    return TeamVersion(str(version), key), model


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    with writing(tmp_path / "base", "model", {}) as partial:
        save_model(tiny_model(scale=5.0), TOKENIZER, partial)
    made = LocalStore(tmp_path / "store")
    made.publish(tmp_path / "base", BASE)
    return made


def team_of(store: LocalStore, work: Path, condenser: str) -> RemoteTeam:
    config = RunConfig(method=DecorConfig(prompts="compact", condenser=condenser, max_tokens=8))  # type: ignore[arg-type]
    info = RunInfo(run="run", attempt=1, config=config.model_dump_json(), store=str(store.root), version=None)
    anything: Any = None
    return RemoteTeam.of(info, anything, anything, work)


@pytest.mark.parametrize("lora", [True, False])
def test_every_version_answers_with_its_own_weights(store: LocalStore, tmp_path: Path, lora: bool) -> None:
    team = team_of(store, tmp_path / "work", "extractive")
    for step in (1, 2):
        version, model = published(store, tmp_path, step, lora)
        team.load(version)
        folder = tmp_path / "work" / version.artifact
        assert is_adapter(folder / "shared") == lora
        loaded = team.collector.engine._decoders["shared"]._model()  # type: ignore[attr-defined]
        assert canary(loaded, TOKENIZER).logprobs == pytest.approx(canary(model, TOKENIZER).logprobs, abs=1e-5)
        assert (tmp_path / "work" / BASE).exists() == lora  # whole models need no base
    assert not (tmp_path / "work" / "versions" / "0001.000001").exists()


def test_the_base_plays_the_frozen_roles(store: LocalStore, tmp_path: Path) -> None:
    team = team_of(store, tmp_path / "work", "model")
    version, _ = published(store, tmp_path, 2, lora=True)
    team.load(version)
    slots = team.collector.engine._decoders  # type: ignore[attr-defined]
    assert set(slots) == {"shared", "frozen"}
    assert canary(slots["frozen"]._model(), TOKENIZER).logprobs == pytest.approx(canary(tiny_model(scale=5.0), TOKENIZER).logprobs)
    assert canary(slots["shared"]._model(), TOKENIZER).logprobs != pytest.approx(canary(slots["frozen"]._model(), TOKENIZER).logprobs)


def test_an_adapter_that_computes_something_else_is_refused(store: LocalStore, tmp_path: Path) -> None:
    team = team_of(store, tmp_path / "work", "extractive")
    good, model = published(store, tmp_path, 1, lora=True)
    team.load(good)
    bad, _ = published(store, tmp_path, 2, lora=True, claim=-0.123)
    with pytest.raises(CanaryError, match="differ by"):
        team.load(bad)
    team.load(good)  # its weights are gone from memory by then
    loaded = team.collector.engine._decoders["shared"]._model()  # type: ignore[attr-defined]
    assert canary(loaded, TOKENIZER).logprobs == pytest.approx(canary(model, TOKENIZER).logprobs, abs=1e-5)
