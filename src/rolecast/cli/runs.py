"""`rolecast run create`, `train`, `sft`, `rl`, `eval`, `report` and `methods`: one stage of a run at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rolecast.cli.places import KeyEnv, MethodName, ModelName, ModelPlace, Overrides, TokenizerPlace, path_option
from rolecast.stages.run import Run, open_run, prepare

app = typer.Typer(help="Make runs.")
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="The run: a folder, or s3://bucket/prefix/NAME.")]
ConfigPath = Annotated[Path | None, path_option("YAML; needed when the run is new.", "--config")]
Procs = Annotated[
    int | None, typer.Option("--procs", min=1, metavar="N", help="Processes that train together on this machine, one for each GPU.")
]


def opened(
    path: str,
    config: Path | None,
    overrides: list[str] | None,
    stage: str | None = None,
    procs: int | None = None,
    training: bool = False,
    model: bool = False,
) -> Run:
    """The run at `path` with its world and index, created from `config` if given; `overrides` are of that file, or of what the run has. `stage`: one that its schedule must have, with a
    `model` of its own where that is asked for. `training`: it is to be trained now, by `procs` processes."""
    from rolecast.config import changed_config, load_config
    from rolecast.schedule import find, find_trained
    from rolecast.stages.checks import check_run, require_ranks
    from rolecast.stages.inputs import inputs

    read = load_config(config, overrides or ()) if config is not None else open_run(path).config
    if config is None and overrides:
        read = changed_config(read, overrides, path)
    if stage is not None:
        (find_trained if model else find)(read.schedule, stage)  # before anything is made for it
    if training:
        require_ranks(read, procs)
    given = config is not None or bool(overrides)
    if training or given:
        check_run(read, path, stage if training else None)
    if given:
        return prepare(path, read, inputs)
    run = open_run(path)
    inputs(run)
    return run


@app.callback()
def _group() -> None:
    """Make runs."""


@app.command("create")
def create_run(
    run: RunPath, config: Annotated[Path, path_option("The run's config, YAML.", "--config")], overrides: Overrides = None
) -> None:
    """Make a run with its world and index, for jobs to train."""
    made = opened(run, config, overrides)
    print(made.place)


def train(
    run: RunPath,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="Of the method's schedule, for instance sft or rl.")],
    procs: Procs = None,
    config: ConfigPath = None,
    overrides: Overrides = None,
) -> None:
    """Train one stage of a run, or go on from its newest checkpoint. `--procs N` trains on N GPUs of this machine. A rollout stage
    prepares questions instead."""
    from rolecast.launching.local import train_here
    from rolecast.stages.train import train as train_stage

    made = opened(run, config, overrides, stage, procs, training=True)
    if procs is not None:
        train_here(run, stage, procs)
    print(made.model(stage) if procs is not None else train_stage(made, stage))


def sft(run: RunPath, procs: Procs = None, config: ConfigPath = None, overrides: Overrides = None) -> None:
    """Short for `rolecast train RUN sft`: supervised fine-tuning on a scripted teacher."""
    train(run, "sft", procs, config, overrides)


def rl(run: RunPath, procs: Procs = None, config: ConfigPath = None, overrides: Overrides = None) -> None:
    """Short for `rolecast train RUN rl`: reinforcement learning from the SFT model."""
    train(run, "rl", procs, config, overrides)


def evaluate(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="The run: a folder, or s3://bucket/prefix/NAME. None with --model.")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="Whose model; by default the last one of the schedule.")] = None,
    documents: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Answer from what the last stage of this evaluated run found, instead of searching.")
    ] = None,
    documents_stage: Annotated[str | None, typer.Option(metavar="STAGE", help="Another stage of OTHER.")] = None,
    profile: Annotated[
        str,
        typer.Option(help="Evaluate as released code does: faithful_search_r1, …; or compare answers as hotpotqa, squad, triviaqa or nq."),
    ] = "",
    model: ModelPlace = None,
    method: MethodName = None,
    data: Annotated[
        Path | None,
        path_option("With --model: a folder that `rolecast data` wrote, or a file of questions with its corpus.jsonl beside it."),
    ] = None,
    out: Annotated[Path | None, path_option("With --model: where the evaluation is kept; by default evals/METHOD-MODEL-DATA.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="With --model: so many questions, the first ones; by default all.")] = None,
    model_name: ModelName = "",
    tokenizer: TokenizerPlace = "",
    key_env: KeyEnv = None,
    config: ConfigPath = None,
    overrides: Overrides = None,
) -> None:
    """Greedy evaluation on the held-out test questions; one from documents, or a profile's, is kept beside it. With --model, --method and
    --data no run is needed: any model, in any method, on any converted set."""
    from rolecast.errors import InputError

    if model is not None:
        if run is not None or stage is not None or documents is not None:
            raise InputError("--model evaluates without a run: leave out RUN, --stage and --documents")
        evaluate_model(model, method, data, out, n, model_name, tokenizer, key_env, config, overrides, profile)
        return
    if run is None:
        raise InputError("give a RUN to evaluate, or --model, --method and --data")
    if used := [name for name, value in (("--method", method), ("--data", data), ("--out", out), ("-n", n)) if value is not None]:
        raise InputError(f"{used[0]} belongs to --model: a run has its own; leave it out")
    from rolecast.evaluation.latency import read_result
    from rolecast.evaluation.profiles import find_profile
    from rolecast.evaluation.table import datasets_table, parts_table, results_table
    from rolecast.schedule import last as last_stage
    from rolecast.stages.evaluate import evaluate as evaluate_stage
    from rolecast.stages.fixed import Found

    if documents_stage is not None and documents is None:
        raise InputError("--documents-stage names a stage of another run: give --documents too")
    if profile and documents is not None:
        raise InputError("--profile and --documents are two evaluations: give one of them")
    chosen = find_profile(profile)
    other = open_run(documents) if documents is not None else None
    found = Found(other, documents_stage or last_stage(other.config.schedule)) if other is not None else None
    run_ = opened(run, config, overrides, stage, model=True)
    name = stage or last_stage(run_.config.schedule)
    folder = evaluate_stage(run_, name, chosen, found)
    if found is not None:
        print(f"from the documents of {found.run.place}, stage {found.stage}: {folder}")
    result = read_result(folder)
    print(f"{results_table({folder.name: result})}\n\n{parts_table({folder.name: result})}")
    if "by_dataset" in result:
        print("\n" + datasets_table(result))


def evaluate_model(
    model: str, method: str | None, data: Path | None, out: Path | None, n: int | None, model_name: str, tokenizer: str,
    key_env: str | None, config: Path | None, overrides: list[str] | None, profile: str = "",
) -> None:  # fmt: skip
    """`rolecast eval --model`."""
    from rolecast.errors import InputError
    from rolecast.evaluation.latency import read_result
    from rolecast.evaluation.profiles import find_profile
    from rolecast.evaluation.table import datasets_table, parts_table
    from rolecast.stages.alone import evaluate_alone, trial_of
    from rolecast.stages.models import Speaker, config_for

    if method is None or data is None:
        raise InputError("--model needs --method, one of `rolecast methods`, and --data, a converted set")
    speaker = Speaker(model, model_name, tokenizer, key_env)
    speaker.check()
    settings = {"eval": {"n": n}} if n is not None else {"eval": {"n": 10**9}}
    read = config_for(method, speaker, config, overrides or (), settings)
    told = [method, Path(model_name or model).name, data.stem if data.is_file() else data.resolve().name, *filter(None, [profile])]
    folder = evaluate_alone(trial_of(read, speaker, data, out or Path("evals") / "-".join(told), find_profile(profile)))
    result = read_result(folder)
    print(f"{folder}\n{datasets_table(result)}\n\n{parts_table({'all': result})}")


def report(run: RunPath) -> None:
    """Write summary.json and report.html of a run."""
    from rolecast.stages.report import report as stage

    summary = stage(open_run(run))
    print(f"{summary}\n{summary.with_name('report.html')}")


def methods(as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False) -> None:
    """List the methods with their roles and switches."""
    from rolecast.methods.registry import describe

    rows = describe()
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        if "broken" in row:
            print(f"{row['name']:<12} broken     {row['origin']}: {row['broken']}")
            continue
        roles = ", ".join(role["name"] for role in row["roles"])
        print(f"{row['name']:<12} {'trained' if row['trained'] else 'untrained':<10} {row['origin']:<10} {roles}")
        print("    " + ", ".join(f"{key}={value}" for key, value in row["switches"].items()))
