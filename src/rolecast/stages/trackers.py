"""Weights & Biases and MLflow beside TensorBoard: whoever sets their own variables gets a stage's metrics there.

Nothing of a config says so and nothing of a run depends on it. A tracker that fails while a stage trains is warned of, once, and left out; one
whose package is missing, or that does not open, is told before anything is trained.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from rolecast.errors import InputError
from rolecast.installed import needing

log = logging.getLogger(__name__)
WANDB, MLFLOW = "WANDB_PROJECT", "MLFLOW_TRACKING_URI"
DISABLED = ("disabled", "false")  # of WANDB_MODE and WANDB_DISABLED


class Tracker(Protocol):
    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def open_trackers(run: str, stage: str, place: str, environ: Mapping[str, str] = os.environ) -> list[Tracker]:
    """Those whose variables are set. `run`, `stage`: what the tracker's run is called; `place`: where the run lies, so that a stage that goes on
    goes on there too. One line (`MissingPackageError`, `InputError`) where a tracker cannot be opened."""
    name = f"{run}/{stage}"
    id = hashlib.sha256(f"{place}/{stage}".encode()).hexdigest()[:16]
    trackers: list[Tracker] = []
    if environ.get(WANDB) and environ.get("WANDB_MODE", "") not in DISABLED and environ.get("WANDB_DISABLED", "") not in ("true", "1"):
        trackers.append(_opened("Weights & Biases", WANDB, lambda: _Wandb(run, name, id)))
    if environ.get(MLFLOW):
        trackers.append(_opened("MLflow", MLFLOW, lambda: _Mlflow(run, name, id)))
    return trackers


def _opened(what: str, variable: str, opening: Any) -> Tracker:
    try:
        with needing("track"):
            tracker: Tracker = opening()
    except (ImportError, InputError):
        raise
    except Exception as error:  # whatever their clients raise
        told = " ".join(str(error).split())[:300]
        raise InputError(
            f"{what} cannot be opened, and {variable} is set: {told or type(error).__name__}; mend that or unset it"
        ) from error
    return _Careful(what, tracker)


class _Careful:
    """A tracker that ends no training."""

    def __init__(self, what: str, tracker: Tracker) -> None:
        self._what, self._tracker = what, tracker
        self._failed = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._try(lambda: self._tracker.write(step, metrics))

    def close(self) -> None:
        self._try(self._tracker.close)

    def _try(self, doing: Any) -> None:
        if self._failed:
            return
        try:
            doing()
        except Exception as error:
            self._failed = True
            log.warning("%s takes no metrics any more (%s: %s); the stage goes on without", self._what, type(error).__name__, error)


class _Wandb:
    def __init__(self, run: str, name: str, id: str) -> None:
        import wandb

        self._run = wandb.init(id=id, resume="allow", name=name, group=run)  # project, entity, mode and key are read from its variables

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """The experiment is MLFLOW_EXPERIMENT_NAME, or the run's name."""

    def __init__(self, run: str, name: str, id: str) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()  # address and credentials are read from its variables
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run
        found = self._client.get_experiment_by_name(experiment)
        of = found.experiment_id if found is not None else self._client.create_experiment(experiment)
        before = self._client.search_runs([of], f"tags.`rolecast.id` = '{id}'", max_results=1)
        self._id = before[0].info.run_id if before else self._client.create_run(of, tags={"rolecast.id": id}, run_name=name).info.run_id

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, [Metric(_plain(key), value, now, step) for key, value in metrics.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _plain(name: str) -> str:
    """MLflow takes letters, digits, and _ - . / and spaces."""
    return "".join(letter if letter.isalnum() or letter in "_-./ " else "_" for letter in name)
