"""The end of a run: summary.json, report.html, and pages of what was answered wrong."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rolecast.evaluation.latency import read_result
from rolecast.evaluation.report import render_report
from rolecast.evaluation.wrong_pages import BYTES, IN_REPORT, first_wrong, page_name, wrong, wrong_pages
from rolecast.schedule import Schedule, keys_of
from rolecast.stages.belonging import require_own
from rolecast.stages.budget import accounts
from rolecast.stages.environment import environment_of
from rolecast.stages.gains import gains
from rolecast.stages.looked import FILE as LOOKED
from rolecast.stages.looked import read_looked
from rolecast.stages.metrics import read_metrics
from rolecast.stages.run import Run
from rolecast.stages.segments import segments_of
from rolecast.stages.times import FILE, mean_step
from rolecast.stages.working import origins, seconds
from rolecast.store.artifact import provenance, verify, write_text

WRONG = "wrong"  # folder of the pages of wrong answers


def report(run: Run) -> Path:
    """Writes both files from whatever stages the run has; returns the summary's path."""
    require_own(run)
    schedule = run.config.schedule
    stages = [stage.name for stage in schedule]
    evaluated = [stage for stage in stages if run.has(run.evaluation(stage))]
    for stage in evaluated:
        verify(run.evaluation(stage), "evaluation")
    results = {stage: read_result(run.evaluation(stage)) for stage in evaluated}
    curves = {stage: read_metrics(run.recall(run.stage(stage) / "metrics.jsonl").parent) for stage in stages}
    under = {path.name: path for path in run.artifacts(run.path / "eval") if "." in path.name}
    for path in (path for path in under.values() if run.has(path)):
        verify(path, "evaluation")
    profiles = {name: json.loads((path / "result.json").read_text()) for name, path in under.items() if run.has(path)}
    summary: dict[str, Any] = {
        "method": run.config.method.name,
        "seed": run.config.seed,
        "stages": results,
        **({"gains": added} if (added := gains(run, evaluated)) else {}),
        **({"profiles": profiles} if profiles else {}),
        "controls": {**{f"gold_recall_{stage}": result["gold_recall"] for stage, result in results.items()}, **_controls(schedule, curves)},
        "budget": _budget(run),
        "origin": origin_of(run),
        "environment": _environment(run),
        "segments": {stage: found for stage in stages if (found := segments_of(run, stage))},
        "seconds": seconds(run),
        "step_seconds": {stage.name: spent for stage in schedule if stage.kind == "rl" and (spent := _step_seconds(run, stage.name))},
        "threads": {stage: made.get("threads") for stage in stages if (made := provenance(run.model(stage)))},
        "report": "report.html",
    }
    traces = {stage: json.loads((run.evaluation(stage) / "traces.json").read_text()) for stage in results}
    traces |= {f"{stage.name}_train": kept for stage in schedule if stage.kind == "rl" and (kept := _looked(run, stage.name))}
    counts = {stage: count for stage in results if (count := _write_wrong(run, stage))}
    links = {stage: _linked(run, stage, count, len(counts)) for stage, count in counts.items()}
    shown = {**summary, "title": run.config.name, "config": run.config.model_dump(mode="json"), "wrong": links}
    write_text(run.path / "report.html", render_report(shown, curves, traces))
    write_text(run.path / "summary.json", json.dumps(summary, indent=1))
    for name in ("report.html", "summary.json"):
        run.record(run.path / name)
    return run.path / "summary.json"


def _looked(run: Run, stage: str) -> list[dict[str, Any]]:
    return read_looked(run.recall(run.stage(stage) / LOOKED).parent)


def _write_wrong(run: Run, stage: str) -> int:
    """Pages of what the stage's model got wrong, in the place of those of before; returns how many questions that is."""
    predictions = run.evaluation(stage) / "predictions.jsonl"
    folder = run.path / WRONG
    folder.mkdir(exist_ok=True)
    for stale in folder.glob(f"{stage}-????.html"):
        stale.unlink()
    count = sum(map(wrong, _rows(predictions)))
    for name, page in wrong_pages(f"{run.config.name}: wrong answers of {stage}", stage, _rows(predictions), count):
        write_text(folder / name, page, durable=False)  # hundreds of pages, which the next report writes again
        run.record(folder / name)
    return count


def _linked(run: Run, stage: str, count: int, stages: int) -> dict[str, Any]:
    """What the report shows of a stage's wrong answers, in a part of the room for those of all `stages`, and where all of them are."""
    rows = first_wrong(stage, _rows(run.evaluation(stage) / "predictions.jsonl"), IN_REPORT // stages, BYTES // stages)
    return {"first": f"{WRONG}/{page_name(stage, 1)}", "count": count, "rows": rows, "place": f"{run.place}/{WRONG}"}


def _rows(predictions: Path) -> Iterator[Any]:
    with predictions.open() as lines:
        yield from map(json.loads, lines)


def _step_seconds(run: Run, stage: str) -> dict[str, float]:
    """Mean seconds of the stage's steps by part."""
    return mean_step(read_metrics(run.recall(run.stage(stage) / FILE).parent, FILE))


def _environment(run: Run) -> dict[str, Any]:
    """What the run searches and who judges it, with the digests of what it takes from elsewhere."""
    about = environment_of(run)
    return {
        "index": about.index, "encoder": run.config.retriever.encoder if run.config.retriever.kind in ("dense", "hybrid") else None,
        "judge": about.judged_by, "shared": dict(run.shared), "fingerprint": run.fingerprint,
    }  # fmt: skip


def origin_of(run: Run) -> dict[str, list[str]]:
    """The commits, commands and machines that made what is reported, each once."""
    noted = [origin for stage in origins(run).values() for origin in stage]
    return {f"{part}s": list(dict.fromkeys(origin[part] for origin in noted)) for part in ("commit", "command", "machine")}


def _budget(run: Run) -> dict[str, Any]:
    """What the run might sample in RL, what it did, and what each RL and rollout stage cost, with why RL ended."""
    spent = accounts(run, run.config.schedule)
    return {"tokens": run.config.budget, "sampled": sum(account["sampled"] for account in spent.values()), "stages": spent}


def _controls(schedule: Schedule, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float | None]:
    """What costs no training: did the clip range bind, for each objective where a stage has several, and how much was sampled in all."""
    clipped: dict[str, list[float]] = defaultdict(list)
    sampled = []
    for stage in schedule:
        rows = curves.get(stage.name, ())
        if stage.kind == "rl":
            for name, key in keys_of(stage, "clip_fraction").items():
                control = "clip_fraction" if len(stage.objectives) == 1 else f"clip_fraction_{name}"
                clipped[control] += [row[key] for row in rows if row.get(key) is not None]
        sampled += [row["tokens/sampled"] for row in rows if row.get("tokens/sampled") is not None][-1:]
    return {
        **{control: float(np.mean(shares)) if shares else None for control, shares in clipped.items()},
        "sampled_tokens": float(sum(sampled)) if sampled else None,
    }
