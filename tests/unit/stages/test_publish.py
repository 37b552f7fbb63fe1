"""Versions for workers: named by step, and told apart where a step's weights were put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rolecast.config import RunConfig, make_config
from rolecast.learner.backends import trained_weights
from rolecast.leasing import TeamVersion
from rolecast.loops import OwnLoop
from rolecast.methods.decor import Decor
from rolecast.methods.registry import make_method
from rolecast.rollout.remote import RemoteTeam
from rolecast.rollout.rollouts import Rollouts
from rolecast.stages import publish as publish_stage
from rolecast.stages.publish import _Remote, open_publisher
from rolecast.stages.run import Run
from rolecast.stages.team import training_team
from rolecast.store.artifact import writing
from rolecast.store.local import LocalStore
from rolecast.types import Stage
from rolecast.weights.adapters import is_adapter
from rolecast.weights.canary import canary
from rolecast.weights.models import CPU
from rolecast.weights.settings import LoraConfig
from rolecast.weights.versions import base_of, check_version, read_version
from rolecast.wire.coordinator import RunInfo
from tests.tiny import TOKENIZER, tiny_model, tiny_team

SFT, RL = RunConfig().schedule


def publisher(tmp_path: Path, stage: Stage, told: list[TeamVersion]) -> tuple[_Remote, LocalStore]:
    store = LocalStore(tmp_path / "store")
    run = Run(tmp_path / "run", RunConfig(), store)
    anything: Any = SimpleNamespace(publish=told.append)
    child: Any = SimpleNamespace(attempt=3)
    return _Remote(run, stage, Rollouts(anything, anything), child, tiny_team(), tiny_team(seed=9)), store


def weights(seed: int) -> dict[str, Any]:
    return tiny_team(seed=seed).state_dict()


def test_a_step_that_was_rolled_back_is_a_version_of_its_own(tmp_path: Path) -> None:
    told: list[TeamVersion] = []
    publish, store = publisher(tmp_path, RL, told)
    for step, seed, rollback in ((5, 1, 0), (5, 2, 1), (6, 3, 1)):
        publish.publish(step, weights(seed), rollback)
        version = told[-1]
        folder = store.fetch(version.artifact, tmp_path / "fetched" / version.artifact)
        check_version(tiny_team(seed=seed), TOKENIZER, version.name, folder)
        assert base_of(folder) == "sft/model"
    assert [version.name for version in told] == ["run/3.5", "run/3.5.r1", "run/3.6.r1"]
    assert store.artifacts("versions/rl") == ["versions/rl/0003.000005.r1", "versions/rl/0003.000006.r1"]  # the newest two


def test_versions_of_another_stage_are_left_alone(tmp_path: Path) -> None:
    told: list[TeamVersion] = []
    for stage in (RL, Stage("second", "rl", "rl", RL.objectives)):
        publish, store = publisher(tmp_path, stage, told)
        for step in (1, 2, 3):
            publish.publish(step, weights(step))
    assert [version.artifact for version in told][:1] == ["versions/rl/0003.000001"]
    assert store.artifacts("versions/rl") == ["versions/rl/0003.000002", "versions/rl/0003.000003"]
    assert store.artifacts("versions/second") == ["versions/second/0003.000002", "versions/second/0003.000003"]
    assert base_of(store.fetch("versions/second/0003.000003", tmp_path / "fetched")) == "rl/model"


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_workers_of_a_stage_that_trains_nothing_have_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: dict[str, int] | None
) -> None:
    """Also what lies beside the base: they check it as they check what is trained."""
    told: list[TeamVersion] = []
    plans = Stage("plans", "rollout", "rl")
    monkeypatch.setattr(Decor, "schedule", lambda self: (SFT, RL, plans))
    monkeypatch.setattr(Decor, "prepare", lambda self, trajectory: None)
    scratch = {"hidden": 32, "layers": 2, "heads": 2, "head_dim": 16, "feed_forward": 64}
    config = make_config({"rollouts": "workers", "model": {"scratch": scratch, "lora": lora}}, "here")
    run = Run(tmp_path / "run", config, LocalStore(tmp_path / "store"))
    started = tiny_team(lora=LoraConfig(rank=2) if lora else None)
    with torch.no_grad():
        for _, parameter in started.trained("shared"):
            parameter += 0.01
    with writing(run.model("rl"), "model", {}) as partial:
        started.save(["shared"], partial)
        tiny_model().save_pretrained(partial)
    run.publish(run.model("rl"))
    cast = config.method_in(plans)
    team = training_team(run, cast, plans, None, CPU)

    @contextmanager
    def child(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(attempt=1, control=SimpleNamespace(publish=told.append))

    monkeypatch.setattr(publish_stage, "child_coordinator", child)
    with open_publisher(run, cast, plans, team) as publisher:
        publisher.publish(0, {})
    info = RunInfo(run="run", attempt=1, config=config.model_dump_json(), stage="plans", store=str(tmp_path / "store"), version=told[0])
    there = RemoteTeam.of(info, "http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path / "work")
    there.load(told[0])
    assert there._team is not None
    assert canary(there._team.model("shared"), TOKENIZER).logprobs == pytest.approx(canary(started.model("shared"), TOKENIZER).logprobs)
    published = read_version(tmp_path / "work" / told[0].artifact)
    assert set(published["canaries"]) == {"shared", "frozen"}


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
@pytest.mark.parametrize("condenser", ["extractive", "model"])  # the model is the frozen base
def test_workers_find_the_base_of_a_stage_that_starts_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: dict[str, int] | None, condenser: str
) -> None:
    told: list[TeamVersion] = []
    scratch = {"hidden": 32, "layers": 2, "heads": 2, "head_dim": 16, "feed_forward": 64}
    method = {"name": "decor", "condenser": condenser, "max_tokens": 8}
    config = make_config({"rollouts": "workers", "method": method, "model": {"scratch": scratch, "lora": lora}}, "here")
    stage = replace(RL, start="")
    run = Run(tmp_path / "run", config, LocalStore(tmp_path / "store"))
    cast = make_method(config.method).in_stage(stage)
    team = training_team(run, cast, stage, None, CPU)
    with torch.no_grad():
        for _, parameter in team.trained("shared"):
            parameter += 0.01

    @contextmanager
    def child(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(attempt=1, control=SimpleNamespace(publish=told.append))

    monkeypatch.setattr(publish_stage, "child_coordinator", child)
    with open_publisher(run, cast, stage, team) as publisher:
        publisher.publish(0, trained_weights(team))
    info = RunInfo(run="run", attempt=1, config=config.model_dump_json(), stage="rl", store=str(tmp_path / "store"), version=told[0])
    RemoteTeam.of(info, "http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path / "work").load(
        told[0]
    )  # the canary says that it is the same team


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_the_learner_s_own_engine_is_given_every_version_as_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: dict[str, int] | None
) -> None:
    """With the log-probs that the learner's own weights give; the files go when they are read."""
    given: list[Any] = []
    closed: list[bool] = []

    def load(placed: Any) -> None:
        assert placed.base.is_dir()
        assert all(folder is None or is_adapter(folder) for folder in placed.adapters.values())
        given.append(placed)

    disk = SimpleNamespace(load=load, close=lambda: closed.append(True), version="", branches=0)
    homes: list[OwnLoop] = []
    monkeypatch.setattr(publish_stage, "disk_engine", lambda config, renderer, home: (homes.append(home), disk)[1])
    monkeypatch.setattr(publish_stage, "open_retriever", lambda run: None)
    monkeypatch.setattr(publish_stage, "open_judge", lambda run: None)
    scratch = {"hidden": 32, "layers": 2, "heads": 2, "head_dim": 16, "feed_forward": 64}
    method = {"name": "decor", "condenser": "model" if lora else "extractive"}
    config = make_config({"model": {"scratch": scratch, "lora": lora}, "method": method}, "here")
    stage = replace(RL, start="")
    run = Run(tmp_path / "run", config)
    run.path.mkdir()
    cast = make_method(config.method).in_stage(stage)
    team = training_team(run, cast, stage, None, CPU)
    with open_publisher(run, cast, stage, team) as publisher:
        for step in (1, 2):
            with torch.no_grad():
                for name, parameter in team.trained("shared"):
                    parameter += 0.05 * step if "lora_B" in name or not lora else 0.0
            publisher.publish(step, trained_weights(team))
            assert publisher.collector.runner is homes[0].runner, "it is asked from another loop than it lives in"  # type: ignore[attr-defined]
            canaries = {slot: canary(team.model(slot), TOKENIZER).logprobs for slot in cast.spoken}
            assert {slot: found.logprobs for slot, found in given[-1].canaries.items()} == canaries
    assert [placed.version for placed in given] == ["run/0.1", "run/0.2"]
    assert given[0].canaries["shared"] != given[1].canaries["shared"]
    assert (given[1].base == run.base) == bool(lora)
    assert not list(run.path.glob("version-*"))
    assert closed == [True]
