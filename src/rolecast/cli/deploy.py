"""`rolecast deploy …`: manifests for a cluster, on standard output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rolecast.cli.places import path_option

app = typer.Typer(help="Manifests for a cluster.")
Kind = Literal["pytorchjob", "trainjob", "inferenceservice"]


@app.callback()
def _group() -> None:
    """Keeps `render` a subcommand while it is the only one."""


@app.command()
def render(
    kind: Annotated[Kind, typer.Option(help="What to render.")],
    spec: Annotated[Path | None, path_option("YAML of the training job's or the service's spec.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the spec, value in YAML; as often as you like.")
    ] = None,
) -> None:
    """Print YAML: the job and what belongs to it, or an InferenceService. Needs no cluster; secrets are named, never contained.

    `rolecast deploy render --kind pytorchjob --set run=s3://store/runs/a --set stage=rl --set image=registry/rolecast-learner:1 --set nodes=2`
    """
    from rolecast.launching.render import render_inference_service, render_job, to_yaml
    from rolecast.reading import read_mapping

    values = read_mapping(spec, overrides or (), "spec")
    source = str(spec or "--set")
    manifests = [render_inference_service(values, source)] if kind == "inferenceservice" else render_job(kind, values, source)
    typer.echo(to_yaml(manifests), nl=False)
