"""`rolecast pipeline …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rolecast.cli.runs import Overrides, Procs
from rolecast.errors import InputError

app = typer.Typer(help="The whole job as a Kubeflow pipeline.")


@app.command()
def run(
    config: Annotated[Path, typer.Option(help="The run's config, YAML.")],
    path: Annotated[Path, typer.Option("--run", help="The run's folder.")],
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
    out: Annotated[Path, typer.Option(help="YAML file to write.")],
    config: Annotated[
        Path | None, typer.Option(help="A run's config, YAML: its method's stages become steps; SFT → RL without it.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Compile the pipeline for a Kubeflow Pipelines server."""
    from rolecast.config import RunConfig, load_config
    from rolecast.launching.local_pipeline import compile_pipeline

    compile_pipeline(out, (load_config(config, overrides or ()) if config else RunConfig()).schedule)
    print(out)


@app.command()
def submit(
    config: Annotated[Path, typer.Option(help="The run's config, YAML.")],
    uri: Annotated[str, typer.Option("--run", help="Where the run lives, for instance s3://bucket/runs/NAME.")],
    launcher: Annotated[Literal["local", "pytorchjob", "trainjob"], typer.Option(help="How training steps run.")] = "pytorchjob",
    job: Annotated[Path | None, typer.Option(help="YAML of the training jobs' spec, without run, stage and kind.")] = None,
    image: Annotated[str | None, typer.Option(help="Of launch and report: the control image.")] = None,
    retriever_image: Annotated[str | None, typer.Option(help="Builds the index.")] = None,
    rollout_image: Annotated[str | None, typer.Option(help="Runs evaluations.")] = None,
    s3_secret: Annotated[str | None, typer.Option(help="Name of the Secret with the store's keys.")] = None,
    endpoints: Annotated[str | None, typer.Option(help="Name of the ConfigMap that says where services are.")] = None,
    host: Annotated[str | None, typer.Option(envvar="ROLECAST_KFP_HOST", help="URL of Kubeflow Pipelines.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Of the profile, where Kubeflow has several users.")] = None,
    experiment: Annotated[str, typer.Option()] = "rolecast",
    service_account: Annotated[str, typer.Option(help="That the steps run as.")] = "rolecast-launcher",
    overrides: Overrides = None,
) -> None:
    """Start the pipeline on a Kubeflow Pipelines server. A token is read from ROLECAST_KFP_TOKEN."""
    import json

    from rolecast.config import load_config
    from rolecast.launching.spec import BY_PIPELINE, read_spec
    from rolecast.launching.submit import submit as start
    from rolecast.reading import read_mapping
    from rolecast.stages.checks import check_run

    settings = read_mapping(job, (), "spec")
    if given := sorted(BY_PIPELINE & set(settings)):
        raise InputError(f"{job}: leave out {given[0]}; --run says where the run lives, and the pipeline runs every stage as its kind")
    loaded = load_config(config, overrides or ())
    check_run(loaded, uri)
    if launcher != "local":  # a fault is told now, not after the index was built
        for stage in loaded.schedule:
            read_spec({**settings, "run": uri, "stage": stage.name, "kind": stage.kind}, str(job or "--job"))
    names = {
        "image": image,
        "retriever_image": retriever_image,
        "rollout_image": rollout_image,
        "s3_secret": s3_secret,
        "endpoints": endpoints,
    }
    arguments = {"run": uri, "config": loaded.model_dump_json(), "launcher": launcher, "job": json.dumps(settings)}
    arguments |= {name: value for name, value in names.items() if value is not None}
    started = start(
        host, arguments, loaded.schedule, name=loaded.name, experiment=experiment, namespace=namespace, service_account=service_account
    )
    print(started.url)
