"""What a pipeline's components call: stages by the run's location, with results as KFP artifacts."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from rolecast.errors import InputError
from rolecast.processes import PARENT
from rolecast.stages.step import step

if TYPE_CHECKING:
    from rolecast.launching.inferenceservice import ServingSpec
    from rolecast.stages.run import Run


def _open(run: str) -> Run:
    from rolecast.stages.run import open_run

    return open_run(run)


@step
def prepare(run: str, config: str, schedule: str, execution: str = "") -> str:
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


@step
def train(
    run: str, stage: str, kind: str, launcher: str = "local", job: str = "{}", notes: str | None = None, execution: str = ""
) -> str:  # fmt: skip
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

    here: dict[str, Any] = {"namespace": os.environ["ROLECAST_NAMESPACE"]} if os.environ.get("ROLECAST_NAMESPACE") else {}
    if port := os.environ.get("ROLECAST_COORDINATOR_PORT"):  # that the cluster's policies let through
        here["coordinator"] = {"port": port}
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


@step
def evaluate(
    run: str, stage: str, metrics: Any = None, result: str | None = None, notes: str | None = None, execution: str = ""
) -> str:  # fmt: skip
    """`metrics`: a KFP Metrics artifact; `result`: where to copy all figures as JSON. Returns the evaluation's folder."""
    from rolecast.stages.evaluate import evaluate as evaluate_stage
    from rolecast.stages.notices import of_evaluation

    folder = evaluate_stage(_open(run), stage)
    figures = json.loads((folder / "result.json").read_text())
    _log(metrics, {name: figures.get(name) for name in dict.fromkeys((figures["headline"], "f1", "n"))})
    if result is not None:
        shutil.copy(folder / "result.json", result)
    _note(notes, of_evaluation(run, stage, figures))
    return str(folder)


@step
def report(run: str, page: str | None = None, notes: str | None = None, execution: str = "") -> str:
    """`page`: where to copy the HTML report, for a UI that shows it."""
    from rolecast.stages.notices import of_run
    from rolecast.stages.report import report as write_report

    summary = write_report(_open(run))
    if page is not None:
        shutil.copy(summary.with_name("report.html"), page)
    _note(notes, of_run(run, json.loads(summary.read_text())))
    return str(summary)


@step
def compare(
    out: str, members: str, page: str | None = None, numbers: str | None = None, metrics: Any = None, notes: str | None = None,
    execution: str = "",
) -> str:  # fmt: skip
    """`members`: a JSON list of [label, seed], whose runs are under `out`. `page`, `numbers`: where to copy what is written."""
    from rolecast.stages.compared import compare as put_side_by_side
    from rolecast.stages.compared import members_at
    from rolecast.stages.notices import of_comparison

    found = put_side_by_side(out, members_at(out, json.loads(members)))
    if page is not None:
        from rolecast.evaluation.comparison_page import render_comparison

        Path(page).write_text(render_comparison(found))
    if numbers is not None:
        Path(numbers).write_text(json.dumps(found, indent=1))
    _log(metrics, {f"{row['method']} {found['measure']}": row["mean"] for row in found["methods"]})
    _note(notes, of_comparison(out, found))
    return out


@step
def index(out: str, corpus: str, kind: str, encoder: str, metrics: Any = None, notes: str | None = None, execution: str = "") -> str:
    """Builds an index at `out`, unless this one is there already."""
    from rolecast.retriever.index import Kind
    from rolecast.stages.notices import of_index
    from rolecast.stages.shared_index import find_or_build

    if kind not in get_args(Kind):
        raise InputError(f"no index of kind {kind!r}; there are {', '.join(get_args(Kind))}")
    manifest, digest = find_or_build(corpus, out, cast(Kind, kind), encoder)
    _log(metrics, {"passages": manifest["provenance"]["passages"]})
    _note(notes, of_index(out, manifest, digest))
    return out


@step
def gate(
    run: str, stage: str, service: str, target: str, margin: float, questions: int, metrics: Any = None, notes: str | None = None,
    execution: str = "",
) -> str:  # fmt: skip
    """`deploy` or `keep`. `service`: JSON of a `ServingSpec` of kind agent, without uri and stage; `target`: see `make_deployments`."""
    from rolecast.launching.deployments import make_deployments
    from rolecast.stages import gate as gates
    from rolecast.stages.run import open_run

    current = make_deployments(target, run.rpartition("/")[0]).current(_service(service, run, stage))
    deployed = gates.Team(open_run(current.run), current.stage) if current is not None else None
    candidate = gates.Team(_open(run), stage)
    decision = gates.decide(candidate, deployed, margin, questions)
    _log(metrics, {"difference": decision.mean, "low": decision.low, "high": decision.high, "deploys": int(decision.deploys)})
    _note(notes, gates.notes(candidate, deployed, decision))
    print(decision.reason, flush=True)
    return "deploy" if decision.deploys else "keep"


@step
def deploy(run: str, stage: str, service: str, target: str, notes: str | None = None, execution: str = "") -> str:
    """Puts the team in the place of the deployed one, and waits until it serves. `service`, `target`: as in `gate`."""
    from rolecast.launching.deployments import make_deployments

    spec = _service(service, run, stage)
    where = make_deployments(target, run.rpartition("/")[0]).deploy(spec)
    _note(notes, f"# Deployed\n\n{run}, stage {stage}: {where}\n")
    return where


@step
def conclude(
    place: str, state: str, message: str, notes: str | None = None, execution: str = "", runs: str = "[]"
) -> str:  # fmt: skip
    """The last step, however the others ended: tells it, as Markdown and to an address if there is one. `state`, `message`: KFP's.
    `runs`: JSON list of what has runs of its own below `place`."""
    from rolecast.stages.notices import of_end
    from rolecast.stages.notify import notify
    from rolecast.stages.step import Ends

    all_ends = [Ends(place, execution), *(Ends(f"{place}/{run}", execution) for run in json.loads(runs))]
    text = of_end(place, state, message, [(ends.place, end) for ends in all_ends for end in ends.all()])
    _note(notes, text)
    print(text, flush=True)
    notify(place, state, text)
    for ends in all_ends if execution else ():
        ends.forget()
    return state


def _service(text: str, run: str, stage: str) -> ServingSpec:
    """In the step's own namespace, unless the spec names one."""
    from rolecast.launching.inferenceservice import read_agent
    from rolecast.reading import read_json

    settings = read_json(text, "service")
    here = {"namespace": os.environ["ROLECAST_NAMESPACE"]} if os.environ.get("ROLECAST_NAMESPACE") else {}
    return read_agent({**here, **settings} if isinstance(settings, dict) else settings, run, stage)


def _log(metrics: Any, figures: Mapping[str, Any]) -> None:
    """Those that there are, into a KFP Metrics artifact."""
    for name, value in figures.items():
        if metrics is not None and value is not None:
            metrics.log_metric(name, value)
