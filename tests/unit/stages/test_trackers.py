"""Trackers that their own variables switch on, and what happens when one is missing or away."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rolecast import installed
from rolecast.errors import InputError
from rolecast.installed import MissingPackageError
from rolecast.stages.metrics import MetricsLog, read_metrics
from rolecast.stages.trackers import open_trackers

NAN = float("nan")


class Told:
    """A client that notes what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.fails = ""

    def note(self, what: str, *given: Any) -> None:
        if self.fails == what:
            raise ConnectionError("away")
        self.done.append((what, *given))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Told:
    told, module = Told(), ModuleType("wandb")
    run = SimpleNamespace(log=lambda metrics, step: told.note("log", metrics, step), finish=lambda: told.note("finish"))

    def init(**how: Any) -> Any:
        told.note("init", how)
        return run

    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return told


def test_without_their_variables_there_is_none() -> None:
    assert open_trackers("demo", "rl", "runs/demo", {"HOME": "/"}) == []
    assert open_trackers("demo", "rl", "runs/demo", {"WANDB_PROJECT": "p", "WANDB_MODE": "disabled"}) == []


def test_a_stages_rows_go_there_too_and_what_is_not_finite_does_not(tmp_path: Path, wandb: Told) -> None:
    trackers = open_trackers("demo", "rl", "runs/demo", {"WANDB_PROJECT": "p"})
    log = MetricsLog(tmp_path, -1, trackers=trackers)
    log.write(1, {"reward": 0.5, "kl": NAN})
    log.close()
    (_, how), *rest = wandb.done
    assert (how["name"], how["group"], how["resume"]) == ("demo/rl", "demo", "allow")
    assert rest == [("log", {"reward": 0.5}, 1), ("finish",)]
    assert read_metrics(tmp_path) == [{"step": 1, "kl": None, "reward": 0.5}]
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_stage_that_goes_on_goes_on_in_the_same_run_and_another_run_does_not(wandb: Told) -> None:
    for stage, place in (("rl", "runs/demo"), ("rl", "runs/demo"), ("sft", "runs/demo"), ("rl", "runs/other")):
        open_trackers("demo", stage, place, {"WANDB_PROJECT": "p"})
    ids = [how["id"] for _, how in wandb.done]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_a_tracker_that_is_away_ends_no_training_and_is_warned_of_once(
    tmp_path: Path, wandb: Told, caplog: pytest.LogCaptureFixture
) -> None:
    log = MetricsLog(tmp_path, -1, trackers=open_trackers("demo", "rl", "runs/demo", {"WANDB_PROJECT": "p"}))
    wandb.fails = "log"
    for step in (1, 2):
        log.write(step, {"reward": 0.5})
    log.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    [warning] = [record.message for record in caplog.records]
    assert warning == "Weights & Biases takes no metrics any more (ConnectionError: away); the stage goes on without"


def test_one_that_does_not_open_is_told_before_anything_is_trained(wandb: Told) -> None:
    wandb.fails = "init"
    with pytest.raises(InputError, match="Weights & Biases cannot be opened, and WANDB_PROJECT is set: away; mend that or unset it"):
        open_trackers("demo", "rl", "runs/demo", {"WANDB_PROJECT": "p"})


@pytest.mark.parametrize(
    ("variable", "module", "package"), [("WANDB_PROJECT", "wandb", "wandb"), ("MLFLOW_TRACKING_URI", "mlflow.tracking", "mlflow-skinny")]
)
def test_a_package_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, variable: str, module: str, package: str) -> None:
    monkeypatch.setattr(installed, "extras", lambda: {"track": ["wandb", "mlflow-skinny"]})

    class Absent:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name.partition(".")[0] in ("wandb", "mlflow"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] in ("wandb", "mlflow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(MissingPackageError, match=rf"^{package} is not installed; .*pip install .*\[track\]"):
        open_trackers("demo", "rl", "runs/demo", {variable: "there"})


def test_mlflow_has_a_run_for_each_stage_with_names_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    told, runs = Told(), []

    class Client:
        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="7") if name == "known" else None

        def create_experiment(self, name: str) -> str:
            told.note("experiment", name)
            return "8"

        def search_runs(self, ids: list[str], query: str, max_results: int) -> list[Any]:
            return [run for run in runs if f"'{run.tags['rolecast.id']}'" in query]

        def create_run(self, of: str, tags: dict[str, str], run_name: str) -> Any:
            told.note("run", of, run_name)
            runs.append(SimpleNamespace(info=SimpleNamespace(run_id=f"r{len(runs)}"), tags=tags))
            return runs[-1]

        def log_batch(self, run: str, metrics: list[Any]) -> None:
            told.note("log", run, [(m.key, m.value, m.step) for m in metrics])

        def set_terminated(self, run: str) -> None:
            told.note("end", run)

    mlflow, tracking, entities = (ModuleType(name) for name in ("mlflow", "mlflow.tracking", "mlflow.entities"))
    tracking.MlflowClient = Client  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, now, step: SimpleNamespace(key=key, value=value, step=step)  # type: ignore[attr-defined]
    for module in (mlflow, tracking, entities):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for _ in range(2):
        [tracker] = open_trackers("demo", "rl", "runs/demo", {"MLFLOW_TRACKING_URI": "http://there"})
    tracker.write(3, {"dev/em": 0.5, "pack:fill": 1.0})
    tracker.close()
    assert [done for done in told.done if done[0] != "experiment"] == [
        ("run", "8", "demo/rl"), ("log", "r0", [("dev/em", 0.5, 3), ("pack_fill", 1.0, 3)]), ("end", "r0"),
    ]  # fmt: skip
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "known")
    open_trackers("other", "rl", "runs/other", {"MLFLOW_TRACKING_URI": "http://there"})
    assert told.done[-1] == ("run", "7", "other/rl")
