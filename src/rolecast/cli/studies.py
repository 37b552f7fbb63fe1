"""`rolecast stability` and `rolecast long-context`: studies over any method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rolecast.cli.compare import Methods, Seeds, names_in, numbers_in, run_all, seeds_in
from rolecast.cli.places import Overrides, path_option, runs_option
from rolecast.errors import InputError


def stability(
    methods: Methods,
    steps: Annotated[str, typer.Option(metavar="N,N,…", help="Of RL, at which collapsed runs are counted; the last is where runs end.")],
    seeds: Seeds = "0,1,2",
    sft: Annotated[Literal["both", "with", "without"], typer.Option(help="Whether RL starts from SFT.")] = "both",
    out: Annotated[Path, runs_option("Folder of the runs and of what is written about them.")] = Path("runs/stability"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once; the cores are shared out among them.")] = 1,
    overrides: Overrides = None,
) -> None:
    """How often RL collapses, and how long replies are, over seeds. Run it again to go on after an interruption.

    Each method trains by its own preset, without the guard that brings back the best model. Collapsed: the dev score stays under a tenth of
    its best for three evaluations and never comes back. Writes OUT/stability.json and OUT/stability.html.
    """
    from rolecast.evaluation.stability import stability_table
    from rolecast.stages.stability import plan_stability, study_stability

    taught = {"both": (True, False), "with": (True,), "without": (False,)}[sft]
    at = numbers_in(steps)
    if not at or min(at) < 1:
        raise InputError(f"--steps {steps}: collapse is counted after RL steps; give numbers from 1 on")
    members = plan_stability(names_in(methods), seeds_in(seeds), at, taught, overrides or ())
    run_all(out, members, jobs)
    found = study_stability(out, members, at)
    print(f"\n{len(members)} runs; collapsed by step\n\n{stability_table(found)}\n")
    print(f"numbers: {out / 'stability.json'}\npage:    {out / 'stability.html'}")


def long_context(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Runs that have ended: folders, or s3://bucket/prefix/NAME.")],
    k: Annotated[str, typer.Option(metavar="N,N,…", help="Passages of a search.")] = "3,5,10,20,30",
    passage_tokens: Annotated[
        int, typer.Option(min=0, help="Each passage is filled up to so many tokens; 0 takes them as they are.")
    ] = 200,
    max_context: Annotated[int, typer.Option(min=32, help="Tokens of a role's context; an episode that needs more ends.")] = 8192,
    questions: Annotated[int, typer.Option(min=1, help="Of the test set.")] = 100,
    out: Annotated[Path, path_option("Folder to write into.")] = Path("runs/long-context"),
    overrides: Overrides = None,
) -> None:
    """How long each role's context gets with more and longer passages, and what that does to the score.

    Tests the last model of each run, once for each k; what was tested is not tested again. `--set` changes keys of the method, as
    method.observation_tokens=20000. Writes OUT/contexts.json and OUT/contexts.html.
    """
    from rolecast.evaluation.study_page import contexts_table
    from rolecast.stages.long_context import Setting, study_contexts
    from rolecast.stages.run import open_run

    setting = Setting(passage_tokens, max_context, questions, overrides or ())
    found = study_contexts(out, [open_run(run) for run in runs], numbers_in(k), setting)
    print(f"\n{contexts_table(found)}\n\nnumbers: {out / 'contexts.json'}\npage:    {out / 'contexts.html'}")
