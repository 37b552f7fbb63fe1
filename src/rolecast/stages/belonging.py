"""Whether a run's artifacts were made by the config that it says it has: run.json is a file that anybody can edit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rolecast.errors import InputError
from rolecast.identity import digest
from rolecast.stage_settings import TrainedConfig
from rolecast.stages.run import Run
from rolecast.store.artifact import parse_manifest


def require_own(run: Run) -> None:
    """Raises InputError with the name of an artifact that was made with other settings. Only manifests are read."""
    fixed = digest(run.config, ("result",))
    for artifact in _made_here(run):
        manifest = run.manifest(artifact)
        made = parse_manifest(manifest, str(artifact)).get("provenance", {}) if manifest is not None else {}
        if made.get("fixed", fixed) != fixed:
            raise InputError(
                f"{artifact} was made with other settings than {run.place}/run.json has; give that file its old content back, "
                "or start another run"
            )


def _made_here(run: Run) -> Iterator[Path]:
    """Not the models that another run made."""
    for stage in run.config.schedule:
        settings = run.config.stages[stage.name]
        if not (isinstance(settings, TrainedConfig) and settings.model):
            yield run.result(stage)
        yield run.evaluation(stage.name)
