"""`rolecast pipeline …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolecast.cli.runs import Overrides
from rolecast.errors import InputError

app = typer.Typer(help="The whole job as a Kubeflow pipeline.")


@app.command()
def run(
    config: Annotated[Path, typer.Option(help="The run's config, YAML.")],
    path: Annotated[Path, typer.Option("--run", help="The run's folder.")],
    local: Annotated[bool, typer.Option("--local", help="On this machine, one process per step.")] = False,
    overrides: Overrides = None,
) -> None:
    """SFT, RL, evaluation and report of one run. Interrupted runs go on from their last committed checkpoint."""
    from rolecast.config import load_config
    from rolecast.evaluation.table import print_summary
    from rolecast.launching.local_pipeline import run_local

    if not local:
        raise InputError("only local runs are supported so far: add --local")
    run_local(path, load_config(config, overrides or ()))
    print_summary(path / "summary.json")


@app.command()
def compile(out: Annotated[Path, typer.Option(help="YAML file to write.")]) -> None:
    """Compile the pipeline for a Kubeflow Pipelines server."""
    from rolecast.launching.local_pipeline import compile_pipeline

    compile_pipeline(out)
    print(out)
