"""`rolecast export`."""

from __future__ import annotations

from typing import Annotated

import typer

from rolecast.cli.runs import RunPath


def export(
    run: RunPath,
    stage: Annotated[str | None, typer.Option(help="Whose model; by default the last that was trained.")] = None,
    out: Annotated[
        str, typer.Option(metavar="PLACE", help="A folder, or s3://bucket/prefix/NAME; by default the folder NAME-STAGE here.")
    ] = "",
    adapters: Annotated[bool, typer.Option("--adapters", help="The adapters alone, over a base that their configs name.")] = False,
) -> None:
    """Write a run's model, tokenizer and prompts for plain transformers, peft and vLLM."""
    from rolecast.stages.export import export as write
    from rolecast.stages.run import open_run
    from rolecast.stages.serve import trained_stage

    opened = open_run(run)
    name = trained_stage(opened, opened.config.schedule, stage)
    print(write(opened, name, out or f"{opened.place.rstrip('/').rpartition('/')[2]}-{name}", adapters))
