"""What a pipeline's components call: stages by the run's location, with results as KFP artifacts."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec

from rolecast.config import read_json_config
from rolecast.errors import InputError, RolecastError
from rolecast.stages.run import create, open_run

P = ParamSpec("P")


def _step(stage: Callable[P, str]) -> Callable[P, str]:
    """A named failure is one line in the step's log, not a traceback."""

    @functools.wraps(stage)
    def run(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return stage(*args, **kwargs)
        except RolecastError as error:
            print(f"rolecast: {error}", file=sys.stderr, flush=True)
            sys.exit(error.exit_code)

    return run


@_step
def prepare(run: str, config: str) -> str:
    """Creates the run with its world and index."""
    from rolecast.stages.index import index
    from rolecast.stages.world import world

    opened = create(Path(run), read_json_config(config))
    world(opened)
    index(opened)
    return run


@_step
def train(run: str, stage: str) -> str:
    from rolecast.stages.rl import rl
    from rolecast.stages.sft import sft

    stages = {"sft": sft, "rl": rl}
    if stage not in stages:
        raise InputError(f"no training stage {stage!r}; there are {', '.join(stages)}")
    stages[stage](open_run(Path(run)))
    return run


@_step
def evaluate(run: str, stage: str, metrics: Any = None) -> str:
    """`metrics`: a KFP Metrics artifact. Returns the evaluation's folder, whose result.json holds everything."""
    from rolecast.stages.evaluate import evaluate as evaluate_stage

    folder = evaluate_stage(open_run(Path(run)), stage)
    if metrics is not None:
        result = json.loads((folder / "result.json").read_text())
        for name in ("em", "f1", "n"):
            metrics.log_metric(name, result[name])
    return str(folder)


@_step
def report(run: str, page: str | None = None) -> str:
    """`page`: where to copy the HTML report, for a UI that shows it."""
    from rolecast.stages.report import report as write_report

    summary = write_report(open_run(Path(run)))
    if page is not None:
        shutil.copy(summary.with_name("report.html"), page)
    return str(summary)
