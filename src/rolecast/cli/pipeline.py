"""`rolecast pipeline …`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rolecast.cli.compare import Budget, Methods, Seeds, planned
from rolecast.cli.places import Overrides, path_option, run_option
from rolecast.cli.runs import Procs
from rolecast.errors import InputError

if TYPE_CHECKING:
    from rolecast.config import RunConfig

app = typer.Typer(help="The whole job as a Kubeflow pipeline.")
Launcher = Annotated[Literal["local", "pytorchjob", "trainjob"], typer.Option(help="How training steps run.")]
JobFile = Annotated[Path | None, path_option("YAML of the training jobs' spec, without run, stage and kind.")]
Image = Annotated[str | None, typer.Option(help="Of launch and report: the control image.")]
RetrieverImage = Annotated[str | None, typer.Option(help="Builds the index.")]
RolloutImage = Annotated[str | None, typer.Option(help="Runs evaluations.")]
S3Secret = Annotated[str | None, typer.Option(help="Name of the Secret with the store's keys.")]
Endpoints = Annotated[str | None, typer.Option(help="Name of the ConfigMap that says where services are.")]
Host = Annotated[str | None, typer.Option(envvar="ROLECAST_KFP_HOST", help="URL of Kubeflow Pipelines.")]
Namespace = Annotated[str | None, typer.Option(help="Of the profile, where Kubeflow has several users.")]
Experiment = Annotated[str, typer.Option()]
ServiceAccount = Annotated[str, typer.Option(help="That the steps run as.")]


@app.command()
def run(
    config: Annotated[Path, path_option("The run's config, YAML.")],
    path: Annotated[Path, run_option("The run's folder.")],
    local: Annotated[bool, typer.Option("--local", help="On this machine, one process per step.")] = False,
    procs: Procs = None,
    overrides: Overrides = None,
) -> None:
    """Every stage, evaluation and report of one run. Interrupted runs go on from their last committed checkpoint."""
    from rolecast.config import load_config
    from rolecast.evaluation.table import print_summary
    from rolecast.launching.local_pipeline import run_local

    if not local:
        raise InputError("add --local to run it on this machine; `rolecast pipeline submit` runs it on a cluster")
    run_local(path, load_config(config, overrides or ()), procs)
    print_summary(path / "summary.json")


@app.command()
def compile(
    out: Annotated[Path, path_option("YAML file to write.")],
    config: Annotated[Path | None, path_option("A run's config, YAML: its method's stages become steps; SFT → RL without it.")] = None,
    overrides: Overrides = None,
) -> None:
    """Compile the pipeline for a Kubeflow Pipelines server."""
    from rolecast.config import RunConfig, load_config
    from rolecast.launching.local_pipeline import compile_pipeline

    compile_pipeline(out, (load_config(config, overrides or ()) if config else RunConfig()).schedule)
    print(out)


@app.command()
def submit(
    config: Annotated[Path, path_option("The run's config, YAML.")],
    uri: Annotated[str, typer.Option("--run", help="Where the run lives, for instance s3://bucket/runs/NAME.")],
    launcher: Launcher = "pytorchjob",
    job: JobFile = None,
    image: Image = None,
    retriever_image: RetrieverImage = None,
    rollout_image: RolloutImage = None,
    s3_secret: S3Secret = None,
    endpoints: Endpoints = None,
    host: Host = None,
    namespace: Namespace = None,
    experiment: Experiment = "rolecast",
    service_account: ServiceAccount = "rolecast-launcher",
    overrides: Overrides = None,
) -> None:
    """Start the pipeline on a Kubeflow Pipelines server. A token is read from ROLECAST_KFP_TOKEN."""
    from rolecast_pipelines.schedule import make_pipeline

    from rolecast.config import load_config
    from rolecast.launching.submit import submit as start

    loaded = load_config(config, overrides or ())
    arguments = {"run": uri, "config": loaded.model_dump_json()}
    arguments |= _where(launcher, job, {uri: loaded}, image, retriever_image, rollout_image, s3_secret, endpoints)
    started = start(
        host, arguments, make_pipeline(loaded.schedule), name=loaded.name, experiment=experiment, namespace=namespace,
        service_account=service_account,
    )  # fmt: skip
    print(started.url)


@app.command()
def compare(
    methods: Methods,
    budget: Budget,
    uri: Annotated[str, typer.Option("--run", help="Where the runs and the comparison live, for instance s3://bucket/runs/NAME.")],
    seeds: Seeds = "0",
    out: Annotated[Path | None, path_option("YAML file to write the pipeline into, instead of starting it.")] = None,
    launcher: Launcher = "pytorchjob",
    job: JobFile = None,
    image: Image = None,
    retriever_image: RetrieverImage = None,
    rollout_image: RolloutImage = None,
    s3_secret: S3Secret = None,
    endpoints: Endpoints = None,
    host: Host = None,
    namespace: Namespace = None,
    experiment: Experiment = "rolecast",
    service_account: ServiceAccount = "rolecast-launcher",
    overrides: Overrides = None,
) -> None:
    """Start `rolecast compare` as one pipeline: all runs beside each other, and a step that compares them."""
    from rolecast_pipelines.comparison import make_comparison

    from rolecast.launching.local_pipeline import write_pipeline
    from rolecast.launching.submit import submit as start
    from rolecast.stages.compared import place_of

    members = planned(methods, seeds, budget, overrides)
    runs = {place_of(uri, member): member.config for member in members}
    arguments = {"out": uri, **_where(launcher, job, runs, image, retriever_image, rollout_image, s3_secret, endpoints)}
    if out is not None:
        write_pipeline(out, make_comparison(members))
        print(out)
        return
    started = start(
        host,
        arguments,
        make_comparison(members),
        name="compare",
        experiment=experiment,
        namespace=namespace,
        service_account=service_account,
    )
    print(started.url)


def _where(
    launcher: str, job: Path | None, runs: dict[str, RunConfig], image: str | None, retriever_image: str | None, rollout_image: str | None,
    s3_secret: str | None, endpoints: str | None,
) -> dict[str, Any]:  # fmt: skip
    """The pipeline's arguments that say where its steps run. What cannot work for any of the runs is told now, not after the index was
    built."""
    from rolecast.launching.spec import BY_PIPELINE, read_spec
    from rolecast.reading import read_mapping
    from rolecast.stages.checks import check_run

    settings = read_mapping(job, (), "spec")
    if given := sorted(BY_PIPELINE & set(settings)):
        raise InputError(f"{job}: leave out {given[0]}; --run says where the run lives, and the pipeline runs every stage as its kind")
    for uri, config in runs.items():
        check_run(config, uri)
        for stage in config.schedule if launcher != "local" else ():
            read_spec({**settings, "run": uri, "stage": stage.name, "kind": stage.kind}, str(job or "--job"))
    named = {
        "image": image, "retriever_image": retriever_image, "rollout_image": rollout_image, "s3_secret": s3_secret, "endpoints": endpoints,
    }  # fmt: skip
    return {"launcher": launcher, "job": json.dumps(settings), **{name: value for name, value in named.items() if value is not None}}
