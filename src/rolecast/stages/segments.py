"""Segments of a stage: stretches of steps that were run in one way. What may change while a run goes on is recorded here."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from rolecast.identity import settings
from rolecast.reading import read_own
from rolecast.stages.environment import Environment
from rolecast.stages.run import Run
from rolecast.store.artifact import write_text


class Segment(BaseModel):
    """What each has at least."""

    step: int
    settings: dict[str, Any]
    environment: dict[str, Any] | None


def begin_segment(run: Run, stage: str, step: int, environment: Environment | None = None) -> None:
    """From `step` on the stage runs as the config says now. Nothing is recorded if it did so before.

    Segments that a crash took back, since the stage goes on from an earlier step, are dropped.
    """
    segments = [segment for segment in segments_of(run, stage) if segment["step"] < step]
    now = {
        "settings": {key: value for key, (part, value) in settings(run.config).items() if part != "result" and _concerns(key, stage)},
        "environment": asdict(environment) if environment else None,
    }
    if not segments or {key: segments[-1][key] for key in now} != now:
        segments.append({"step": step, **now})
    file = run.stage(stage) / "segments.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(segments, indent=1))
    run.record(file)


def segments_of(run: Run, stage: str) -> list[dict[str, Any]]:
    """Each with its first `step`, the `settings` that may change, and the `environment`, if the stage has one."""
    file = run.recall(run.stage(stage) / "segments.json")
    return read_own(file, list[Segment], "delete it") if file.exists() else []


def _concerns(key: str, stage: str) -> bool:
    return not key.startswith("stages.") or key.startswith(f"stages.{stage}.")
