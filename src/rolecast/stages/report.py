"""The end of a run: summary.json and report.html."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rolecast.evaluation.report import render_report
from rolecast.stages.metrics import read_metrics
from rolecast.stages.run import Run, seconds
from rolecast.store.artifact import write_text


def report(run: Run) -> Path:
    """Writes both files from whatever stages the run has; returns the summary's path."""
    stages = [stage.name for stage in run.config.schedule]
    results = {stage: json.loads((run.evaluation(stage) / "result.json").read_text()) for stage in stages if run.has(run.evaluation(stage))}
    curves = {stage: read_metrics(run.recall(run.stage(stage) / "metrics.jsonl").parent) for stage in stages}
    summary: dict[str, Any] = {
        "method": run.config.method.name,
        "seed": run.config.seed,
        "stages": results,
        "controls": _controls(results, [row for rows in curves.values() for row in rows]),
        "seconds": seconds(run),
        "report": "report.html",
    }
    traces = {stage: json.loads((run.evaluation(stage) / "traces.json").read_text()) for stage in results}
    shown = {**summary, "title": run.config.name, "config": run.config.model_dump(mode="json")}
    write_text(run.path / "report.html", render_report(shown, curves, traces))
    write_text(run.path / "summary.json", json.dumps(summary, indent=1))
    for name in ("report.html", "summary.json"):
        run.record(run.path / name)
    return run.path / "summary.json"


def _controls(results: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """What costs no training: was the evidence found, and did the clip range bind."""
    clipped = [row["clip_fraction"] for row in rows if row.get("clip_fraction") is not None]
    sampled = [row["tokens/sampled"] for row in rows if row.get("tokens/sampled") is not None]
    return {
        **{f"gold_recall_{stage}": result["gold_recall"] for stage, result in results.items()},
        "clip_fraction": float(np.mean(clipped)) if clipped else None,
        "sampled_tokens": float(sampled[-1]) if sampled else None,
    }
