"""`rolecast rescore` and `rolecast diff`: looking again at what runs did."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rolecast.cli.places import Overrides, path_option
from rolecast.cli.runs import RunPath


def rescore(
    run: RunPath,
    stage: Annotated[str | None, typer.Option(help="Whose groups; by default the last RL stage's.")] = None,
    out: Annotated[Path | None, path_option("Also write a JSON line for each unit of credit: its reward and its advantage.")] = None,
    overrides: Overrides = None,
) -> None:
    """Rewards, credit and advantages of a stage's kept groups again, under another config: `--set method.alpha=0.5`.

    The stage must have been trained with stages.NAME.record=true. Nothing is sampled and no judge is asked.
    """
    from rolecast.errors import InputError
    from rolecast.stages.rescore import write_rescored
    from rolecast.stages.run import open_run

    opened = open_run(run)
    stages = [one.name for one in opened.config.schedule if one.kind == "rl"]
    if not stages:
        raise InputError(f"{run}: {opened.config.method.name} has no RL stage, so there are no groups to score again")
    print(write_rescored(opened, stage or stages[-1], overrides or (), out))
    if out is not None:
        print(f"units: {out}")


def diff(
    a: Annotated[str, typer.Argument(metavar="RUN", help="A run, or what `rolecast eval --model` wrote.")],
    b: Annotated[str, typer.Argument(metavar="RUN", help="The one to compare with it; the same run with other stages will do.")],
    stage: Annotated[str, typer.Option(help="Of the first; by default its last that was evaluated.")] = "",
    other_stage: Annotated[str, typer.Option(help="Of the second; by default its last that was evaluated.")] = "",
    measure: Annotated[str, typer.Option(help="The score that questions are compared by.")] = "em",
    show: Annotated[int, typer.Option("-n", min=0, help="Print so many questions whose score changed.")] = 20,
    out: Annotated[Path | None, path_option("Also write pages of all questions into this folder.")] = None,
) -> None:
    """Two runs on the same test questions, question by question: what got better and what got worse, with a paired interval and test."""
    from rolecast.evaluation.diff import diff_table
    from rolecast.stages.diff import compare_evaluations, write_diff

    found = compare_evaluations(a, b, stage, other_stage, measure)
    print(diff_table(found, show))
    if out is not None:
        print(f"page: {write_diff(found, out)}")
