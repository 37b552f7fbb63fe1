"""`rolecast demo`: the whole job with a preset."""

from __future__ import annotations

from importlib.resources import as_file
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolecast.cli.places import Overrides, path_option, run_option
from rolecast.cli.runs import Procs

if TYPE_CHECKING:
    from rolecast.config import RunConfig
SMALL_MODEL = "small_model"  # what --model takes unless a preset is named


def demo(
    method: Annotated[str, typer.Option(help="Which method to train; see `rolecast methods`.")] = "decor",
    preset: Annotated[str, typer.Option(help="Which of the method's presets; its first by default.")] = "",
    algorithm: Annotated[str, typer.Option(help="The same as --preset: grpo or ppo of search_r1.")] = "",
    model: Annotated[Path | None, path_option("A Hugging Face causal LM with a chat template, instead of the small one.")] = None,
    path: Annotated[Path | None, run_option("The run's folder; runs/demo by default.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the world, the model and the samples.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the run's folder and start anew.")] = False,
    procs: Procs = None,
    overrides: Overrides = None,
) -> None:
    """World → index → SFT → RL → evaluation → report, on two CPU cores. Run it again to go on after an interruption."""
    from rolecast.config import load_config
    from rolecast.errors import InputError
    from rolecast.evaluation.table import print_summary
    from rolecast.launching.local_pipeline import run_local
    from rolecast.methods.registry import find
    from rolecast.stages.run import erase
    from rolecast.weights.models import check_model

    if preset and algorithm and preset != algorithm:
        raise InputError(f"--preset {preset} and --algorithm {algorithm} name two presets; give one")
    chosen = preset or algorithm or (SMALL_MODEL if model else "")
    extra = [f"seed={seed}", *(overrides or [])]
    found = find(method)
    if model is not None:
        if SMALL_MODEL not in found.presets:
            raise InputError(f"--model needs a preset {SMALL_MODEL}, which {method} lacks; write a config and use `rolecast pipeline run`")
        check_model(model)
        extra.insert(0, f"model.path={model.resolve()}")
    with as_file(found.preset(chosen)) as file:
        config = load_config(file, extra)
        chosen = file.stem
    path = path or Path("runs") / (config.name if seed == 0 else f"{config.name}-{seed}")
    if fresh and path.exists():
        if not (path / "run.json").exists():
            raise InputError(f"{path} is not a run; --fresh deletes runs only")
        erase(path)
    print(f"preset {chosen}: {plan(config)}, evaluation on {config.eval.n} questions → {path}", flush=True)
    run_local(path, config, procs)
    print_summary(path / "summary.json")


def plan(config: RunConfig) -> str:
    """What will be done, stage by stage."""
    from rolecast.stage_settings import RlConfig, RolloutConfig, SftConfig

    said = []
    for name, stage in config.stages.items():
        match stage:
            case SftConfig():
                said.append(f"{name} {stage.steps} steps of {stage.batch} rows")
            case RlConfig():
                said.append(f"{name} {stage.steps} steps of {stage.questions} questions × {stage.group} rollouts")
            case RolloutConfig():
                said.append(f"{name} of {stage.questions or 'all'} questions × {stage.samples} rollouts")
    return ", ".join(said)
