"""What a pipeline's components call: stages by the run's location, with results as KFP artifacts."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from rolecast.disk import disk_fault
from rolecast.errors import InputError, RolecastError
from rolecast.installed import needing
from rolecast.processes import PARENT, die_with_parent, prepare_process, say_error
from rolecast.signals import Stopped, signals_raise
from rolecast.working_copies import told

if TYPE_CHECKING:
    from rolecast.stages.run import Run

P = ParamSpec("P")


def _step(stage: Callable[P, str]) -> Callable[P, str]:
    """A step's process is prepared as a command's is; a named failure is one line in its log, not a traceback."""

    @functools.wraps(stage)
    def run(*args: P.args, **kwargs: P.kwargs) -> str:
        prepare_process()
        die_with_parent()
        with signals_raise():
            try:
                with needing():
                    return stage(*args, **kwargs)
            except Stopped as stopped:
                say_error(f"told to end: nothing was to be saved in {stage.__name__}")
                sys.exit(stopped.code)
            except RolecastError as error:
                say_error(told(error))
                sys.exit(error.exit_code)
            except OSError as error:
                if (fault := disk_fault(error)) is None:
                    raise
                say_error(str(fault))
                sys.exit(fault.exit_code)

    return run


def _open(run: str) -> Run:
    from rolecast.stages.run import open_run

    return open_run(run)


@_step
def prepare(run: str, config: str, schedule: str) -> str:
    """Creates the run with its world and index. `schedule`: the digest of the one that the pipeline was compiled for."""
    from rolecast.config import read_json_config
    from rolecast.schedule import digest
    from rolecast.stages.checks import check_run
    from rolecast.stages.inputs import inputs
    from rolecast.stages.run import prepare as prepare_run

    read = read_json_config(config)
    if digest(read.schedule) != schedule:
        stages = " → ".join(stage.name for stage in read.schedule)
        raise InputError(
            f"the config's method has the stages {stages}, and this pipeline was compiled for others; compile it with --config"
        )
    if PARENT not in os.environ:  # whose command has done it
        check_run(read, run)
    prepare_run(run, read, inputs)
    return run


@_step
def train(run: str, stage: str, kind: str, launcher: str = "local", job: str = "{}", notes: str | None = None) -> str:
    """Trains in this process, or launches a job and waits for it.

    `job`: JSON of a `TrainingJobSpec` without run and stage. `notes`: where to write what happened, as Markdown. A step that
    launches a job needs neither torch nor the run's files. A rollout stage takes one process of the job's many.
    """
    settings = _job_settings(job)
    if kind == "rollout":
        settings = _one_process(settings)
    if launcher == "local" and not {"procs_per_node", "zero_stage"} & set(settings):
        text = _train_here(run, stage)
    else:
        text = _launch(run, stage, kind, launcher, settings, notes)
    _note(notes, text)
    return run


def _train_here(run: str, stage: str) -> str:
    from rolecast.stages.train import train as train_stage

    start = time.monotonic()
    train_stage(_open(run), stage)
    return f"# Stage {stage} of {run}\n\nDone in this step, in {time.monotonic() - start:.0f} s.\n"


def _launch(run: str, stage: str, kind: str, launcher: str, settings: dict[str, Any], notes: str | None) -> str:
    from rolecast.launching.failure import JobFailed
    from rolecast.launching.launchers import make_launcher
    from rolecast.launching.spec import read_spec

    here = {"namespace": os.environ["ROLECAST_NAMESPACE"]} if os.environ.get("ROLECAST_NAMESPACE") else {}
    local = {"image": "none"} if launcher == "local" else {}
    spec = read_spec({**local, **here, **settings, "run": run, "stage": stage, "kind": kind}, "job")
    try:
        return make_launcher(launcher).run(spec).report()
    except JobFailed as failure:
        _note(notes, failure.report)
        print(failure.report, file=sys.stderr, flush=True)  # artifacts of a step that fails may not be kept
        raise


def _job_settings(job: str) -> dict[str, Any]:
    from rolecast.launching.spec import BY_PIPELINE
    from rolecast.reading import read_json

    settings = read_json(job, "job")
    if not isinstance(settings, dict) or BY_PIPELINE & set(settings):
        raise InputError("job is a JSON object with keys of a training job's spec, without run, stage and kind, which the pipeline sets")
    return settings


def _one_process(settings: dict[str, Any]) -> dict[str, Any]:
    """Nothing is trained, so there is nothing to share: other processes would only hold their GPUs."""
    kept = {key: value for key, value in settings.items() if key not in ("nodes", "procs_per_node", "zero_stage")}
    return {**kept, "gpus_per_node": 1} if settings.get("gpus_per_node") else kept


def _note(notes: str | None, text: str) -> None:
    if notes is not None:
        Path(notes).write_text(text)


@_step
def evaluate(run: str, stage: str, metrics: Any = None, result: str | None = None) -> str:
    """`metrics`: a KFP Metrics artifact; `result`: where to copy all figures as JSON. Returns the evaluation's folder."""
    from rolecast.stages.evaluate import evaluate as evaluate_stage

    folder = evaluate_stage(_open(run), stage)
    if metrics is not None:
        figures = json.loads((folder / "result.json").read_text())
        for name in dict.fromkeys((figures["headline"], "f1", "n")):
            if figures.get(name) is not None:
                metrics.log_metric(name, figures[name])
    if result is not None:
        shutil.copy(folder / "result.json", result)
    return str(folder)


@_step
def report(run: str, page: str | None = None) -> str:
    """`page`: where to copy the HTML report, for a UI that shows it."""
    from rolecast.stages.report import report as write_report

    summary = write_report(_open(run))
    if page is not None:
        shutil.copy(summary.with_name("report.html"), page)
    return str(summary)


@_step
def compare(out: str, members: str, page: str | None = None, numbers: str | None = None) -> str:
    """`members`: a JSON list of [label, seed], whose runs are under `out`. `page`, `numbers`: where to copy what is written."""
    from rolecast.stages.compared import compare as put_side_by_side
    from rolecast.stages.compared import members_at

    found = put_side_by_side(out, members_at(out, json.loads(members)))
    if page is not None:
        from rolecast.evaluation.comparison_page import render_comparison

        Path(page).write_text(render_comparison(found))
    if numbers is not None:
        Path(numbers).write_text(json.dumps(found, indent=1))
    return out
