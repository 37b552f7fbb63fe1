"""Versions for workers: named by step, and told apart where a step's weights were put back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import PreTrainedModel

from rolecast.config import RunConfig
from rolecast.coordinator.leases import TeamVersion
from rolecast.learner.checkpoint import save_model
from rolecast.rollout.rollouts import Rollouts
from rolecast.rollout.versions import check_team
from rolecast.stages.publish import _Remote
from rolecast.stages.run import Run
from rolecast.store.local import LocalStore
from tests.tiny import TOKENIZER, tiny_model


def publisher(tmp_path: Path, told: list[TeamVersion]) -> tuple[_Remote, LocalStore]:
    store = LocalStore(tmp_path / "store")
    run = Run(tmp_path / "run", RunConfig(), store)
    save_model(tiny_model(), TOKENIZER, run.model("sft"))
    anything: Any = SimpleNamespace(publish=told.append)
    child: Any = SimpleNamespace(attempt=3)
    return _Remote(run, Rollouts(anything, anything), child, tiny_model(), TOKENIZER), store


def weights(seed: int) -> dict[str, Any]:
    model: PreTrainedModel = tiny_model(seed=seed)
    return model.state_dict()


def test_a_step_that_was_rolled_back_is_a_version_of_its_own(tmp_path: Path) -> None:
    told: list[TeamVersion] = []
    publish, store = publisher(tmp_path, told)
    for step, seed, rollback in ((5, 1, 0), (5, 2, 1), (6, 3, 1)):
        publish.publish(step, weights(seed), rollback)
        version = told[-1]
        folder = store.fetch(version.artifact, tmp_path / "fetched" / version.artifact)
        check_team(tiny_model(seed=seed), TOKENIZER, version.name, folder)
    assert [version.name for version in told] == ["run/3.5", "run/3.5.r1", "run/3.6.r1"]
    assert store.artifacts("versions") == ["versions/0003.000005.r1", "versions/0003.000006.r1"]  # the newest two
