"""Two runs' evaluations side by side, or those of models that were evaluated without a run."""

from __future__ import annotations

import json
from pathlib import Path

from rolecast.errors import InputError
from rolecast.evaluation.diff import Diff, Predictions, diff, diff_pages
from rolecast.schedule import find_trained
from rolecast.stages.alone import RESULT
from rolecast.stages.run import open_run
from rolecast.store.artifact import committed, verify, write_text


def compare_evaluations(a: str, b: str, stage_a: str = "", stage_b: str = "", measure: str = "em") -> Diff:
    """Each a run (a folder or s3://…) or what `rolecast eval --model` wrote. The stages are the last evaluated ones, unless named."""
    (name_a, folder_a), (name_b, folder_b) = evaluation_at(a, stage_a), evaluation_at(b, stage_b)
    return diff(name_a, read_predictions(folder_a), name_b, read_predictions(folder_b), measure)


def evaluation_at(place: str, stage: str = "") -> tuple[str, Path]:
    """(what to call it, its folder). InputError where nothing was evaluated."""
    alone = Path(place) / RESULT
    if committed(alone):
        if stage:
            raise InputError(f"{place} is an evaluation without a run: it has no stage {stage!r}; leave the stage out")
        return place, alone
    run = open_run(place)
    if stage:
        find_trained(run.config.schedule, stage)
    names = [stage] if stage else [one.name for one in reversed(run.config.schedule) if one.trains]
    found = next((name for name in names if run.has(run.evaluation(name))), None)
    if found is None:
        raise InputError(f"{place}: {' and '.join(names)} not evaluated; run `rolecast eval {place}{f' --stage {stage}' if stage else ''}`")
    return f"{run.place}, {found}", run.evaluation(found)


def read_predictions(folder: Path) -> Predictions:
    """By what was asked and what is right: questions of two worlds never meet."""
    verify(folder, "evaluation")
    with (folder / "predictions.jsonl").open() as lines:
        rows = map(json.loads, lines)
        return {json.dumps([row["id"], row["question"], row["golds"]]): row for row in rows}


def write_diff(found: Diff, out: Path) -> Path:
    """Pages of all questions; those of before go. Returns the first one. InputError for a folder that holds something else."""
    if out.exists() and any(path.suffix != ".html" for path in out.iterdir()):
        raise InputError(f"{out} holds something else than a diff; name another folder by --out")
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob("page-*.html"):
        stale.unlink()
    for name, page in diff_pages(found):
        write_text(out / name, page)
    return out / "index.html"
