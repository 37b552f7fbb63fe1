"""`rolecast compare`: methods side by side under one protocol."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolecast.cli.places import Overrides, runs_option
from rolecast.errors import InputError

if TYPE_CHECKING:
    from rolecast.stages.comparison import Member

Methods = Annotated[
    str, typer.Option(metavar="A,B,…", help="Each a METHOD, METHOD:PRESET or a config file PATH.yaml; the first says what all share.")
]
Seeds = Annotated[str, typer.Option(metavar="N,N,…", help="Each draws a world, a model and samples, the same ones for every method.")]
Budget = Annotated[int, typer.Option(min=1, help="Tokens that trained roles sample in RL, of each run.")]


def compare(
    methods: Methods,
    budget: Budget,
    seeds: Seeds = "0",
    out: Annotated[Path, runs_option("Folder of the runs and of what is written about them.")] = Path("runs/compare"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once; the cores are shared out among them.")] = 1,
    measure: Annotated[str, typer.Option(help="The score to compare; what the methods are selected on, or else em, by default.")] = "",
    overrides: Overrides = None,
) -> None:
    """Train and test methods on the same questions, index, SFT rows and sampled tokens. Run it again to go on after an interruption.

    Methods that are not trained take part as they are. A `--set` changes a key of every method that has it. Writes OUT/comparison.json and
    OUT/comparison.html.
    """
    from rolecast.evaluation.comparison import comparison_table
    from rolecast.stages.compared import compare as put_side_by_side

    members = planned(methods, seeds, budget, overrides)
    run_all(out, members, jobs)
    found = put_side_by_side(out, members, measure)
    print(f"\n{len(members)} runs, held-out questions, greedy\n\n{comparison_table(found)}\n")
    print(f"numbers: {out / 'comparison.json'}\npage:    {out / 'comparison.html'}")


def planned(methods: str, seeds: str, budget: int, overrides: list[str] | None) -> list[Member]:
    from rolecast.stages.comparison import plan

    return plan(names_in(methods), seeds_in(seeds), budget, overrides or ())


def run_all(out: Path, members: list[Member], jobs: int) -> None:
    """Every run that has not ended, in processes of their own. What is wrong with any is said before the first begins."""
    from rolecast.launching.side_by_side import Job, SideBySide
    from rolecast.stages.checks import check_run
    from rolecast.stages.compared import finished
    from rolecast.stages.run import open_run, refuse_other
    from rolecast.store.artifact import write_text

    waiting = []
    for member in members:
        path, config = out / member.key, out / "configs" / f"{member.key}.yaml"
        refuse_other(path, member.config)
        if (path / "run.json").exists() and finished(open_run(path)):
            continue
        check_run(member.config, path)
        config.parent.mkdir(parents=True, exist_ok=True)
        write_text(config, json.dumps(member.config.model_dump(mode="json"), indent=1))  # YAML, as all JSON is
        arguments = ["pipeline", "run", "--local", "--config", str(config), "--run", str(path)]
        waiting.append(Job(member.key, arguments, out / "logs" / f"{member.key}.log"))
    if done := len(members) - len(waiting):
        print(f"{done} of {len(members)} runs are done", flush=True)
    SideBySide(jobs, sys.stdout).run(waiting)


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def seeds_in(text: str) -> list[int]:
    seeds = numbers_in(text)
    if any(seed < 0 for seed in seeds):
        raise InputError(f"--seeds {text}: a seed is a whole number from 0 on")
    return seeds


def numbers_in(text: str) -> list[int]:
    try:
        return [int(number) for number in names_in(text)]
    except ValueError:
        raise InputError(f"{text!r}: write whole numbers with commas between them") from None
