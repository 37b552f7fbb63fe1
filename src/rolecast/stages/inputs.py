"""What a run's stages start from: its world, its index, and models that other runs trained."""

from __future__ import annotations

from rolecast.errors import InputError
from rolecast.stage_settings import TrainedConfig
from rolecast.stages.index import index
from rolecast.stages.run import Run
from rolecast.store.artifact import MANIFEST, digest_of, verify
from rolecast.store.uri import fetch


def inputs(run: Run) -> None:
    """Makes or fetches all of it, unless it is there."""
    index(run)
    for name, stage in run.config.stages.items():
        if isinstance(stage, TrainedConfig) and stage.model and not run.has(run.model(name)):
            _take_model(run, name, stage.model)


def _take_model(run: Run, stage: str, uri: str) -> None:
    """A copy, as the model of the run's own stage: the run stays whole if the other one goes."""
    folder = fetch(uri, run.model(stage))
    found = digest_of((folder / MANIFEST).read_bytes())
    try:
        verify(folder, "model")
        if found != run.shared[f"stages.{stage}.model"]:
            raise InputError(f"stages.{stage}.model: {uri} holds another model than when the run was made")
    except BaseException:
        run.discard(folder)
        raise
    run.publish(folder)
