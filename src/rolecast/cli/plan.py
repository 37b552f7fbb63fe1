"""`rolecast plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rolecast.cli.places import Overrides, path_argument


def plan(
    config: Annotated[Path, path_argument("A run's config, YAML.")],
    gpus: Annotated[int, typer.Option(min=0, metavar="N", help="GPUs that train together; 0 is this machine's processor.")] = 0,
    memory: Annotated[
        float | None, typer.Option(min=0.001, metavar="GIB", help="Of each GPU, or without GPUs of the machine: by default what is here.")
    ] = None,
    passages: Annotated[int | None, typer.Option(min=1, metavar="N", help="Of a corpus that is not here.")] = None,
    tokens_per_second: Annotated[
        str, typer.Option(metavar="SAMPLING,TRAINING", help="Rates, for hours: what the engine samples, what the learner trains on.")
    ] = "",
    like: Annotated[str, typer.Option(metavar="RUN", help="Or an earlier run on such a machine: its rates and means.")] = "",
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="An object of bytes, counts and seconds.")] = False,
) -> None:
    """Say what a run will take, and refuse what cannot fit. Starts nothing, loads nothing, writes nothing."""
    from rolecast.config import load_config
    from rolecast.errors import InputError
    from rolecast.planning.hours import measured, read_rates
    from rolecast.planning.plan import as_json as object_of
    from rolecast.planning.plan import make_plan, require_fits
    from rolecast.planning.table import table
    from rolecast.stages.run import open_run

    if tokens_per_second and like:
        raise InputError("--tokens-per-second and --like are two sources of rates; give one of them")
    rates = read_rates(tokens_per_second) if tokens_per_second else measured(open_run(like)) if like else None
    made = make_plan(load_config(config, overrides or ()), gpus, memory, rates, passages)
    print(json.dumps(object_of(made), indent=1) if as_json else table(made))
    require_fits(made)
