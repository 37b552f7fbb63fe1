"""What is not finite: refused batches are kept to look into, and such weights are never published, kept as the best, or made a model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_rl import Dev, Idling

from rolecast.config import RunConfig
from rolecast.errors import DivergedError
from rolecast.learner.learner import make_learner
from rolecast.learner.ranks import ALONE
from rolecast.learner.refusals import Refusal
from rolecast.learner.settings import OptimizerConfig
from rolecast.rollout.rollouts import Rollouts
from rolecast.stages.publish import _Remote
from rolecast.stages.refusals import KEPT, keeping
from rolecast.stages.run import Run
from rolecast.stages.stopping import Stopping
from rolecast.store.artifact import verify
from rolecast.store.local import LocalStore
from rolecast.types import Example, ImitationTerm, Objective
from tests.tiny import tiny_team

NUMBERS = [math.nan, math.inf]


def spoil(team: torch.nn.Module, number: float) -> None:
    with torch.no_grad():
        next(parameter for parameter in team.parameters() if parameter.ndim == 2)[0, 0] = number


def test_refused_batches_are_artifacts_of_the_run_and_the_newest_are_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    run = Run(tmp_path / "run", RunConfig(), store)
    objective = Objective("o", "shared", 1e-3, imitation=ImitationTerm())
    learner = make_learner([objective], tiny_team(), OptimizerConfig(), 30, 0)
    learner.keep = keeping(run, "sft")
    spoilt, sound = (Example((5, 6, 7), (False, True, True), weight=weight) for weight in (math.nan, 1.0))
    for _ in range(KEPT + 2):
        for row in (spoilt, sound):
            learner.update([learner.cut(objective, [], [], [], {}, [row])])
    places = run.artifacts(run.stage("sft") / "refused")
    assert [place.name for place in places] == [f"update-{2 * number:06d}.shared.1" for number in range(2, KEPT + 2)]
    assert store.artifacts("sft/refused") == [f"sft/refused/{place.name}" for place in places]
    verify(places[-1], "refusal")
    assert json.loads((places[-1] / "refusal.json").read_text())["update"] == 2 * (KEPT + 1)


def test_a_batch_that_is_refused_again_after_a_crash_replaces_its_like(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    run = Run(tmp_path / "run", RunConfig(), store)
    keep = keeping(run, "sft")
    for reason in ("first", "again"):
        keep(Refusal("shared", 3, 1, reason, []))
    place = store.fetch("sft/refused/update-000003.shared.1", tmp_path / "fetched")
    assert json.loads((place / "refusal.json").read_text())["reason"] == "again"


@pytest.mark.parametrize("number", NUMBERS)
def test_weights_that_are_not_finite_never_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: float) -> None:
    run = Idling(tmp_path, monkeypatch, "ttt")
    monkeypatch.setattr(run, "move", lambda: spoil(run.team, number))
    with pytest.raises(DivergedError, match=r"step 1: weight .* is not finite, so it is neither saved nor published"):
        run.trainer.train(Stopping(ALONE))
    assert run.published == [(0, 0)]
    assert run.run.artifacts(run.trainer.folder / "checkpoints") == []


@pytest.mark.parametrize("number", NUMBERS)
def test_weights_that_are_not_finite_are_no_best_model(tmp_path: Path, number: float) -> None:
    run = Dev(tmp_path)
    spoil(run.team, number)
    with pytest.raises(DivergedError):
        run.trainer.evaluate(3, run.trainer.learner.weights())
    assert not run.trainer.best.exists()


@pytest.mark.parametrize("number", NUMBERS)
def test_weights_that_are_not_finite_are_no_version(tmp_path: Path, number: float) -> None:
    told: list[Any] = []
    store = LocalStore(tmp_path / "store")
    run = Run(tmp_path / "run", RunConfig(), store)
    team = tiny_team()
    control: Any = SimpleNamespace(publish=told.append)
    child: Any = SimpleNamespace(attempt=1)
    publisher = _Remote(run, RunConfig().schedule[1], Rollouts(control, control), child, team, tiny_team())
    spoil(team, number)
    with pytest.raises(DivergedError):
        publisher.publish(1, team.state_dict())
    assert told == []
    assert store.artifacts("versions") == []
    assert not list((tmp_path / "run").rglob("manifest.json"))
