"""`rolecast data demonstrate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from rolecast.cli.places import KeyEnv, ModelName, Overrides, TokenizerPlace, path_option


def demonstrate(
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="PLACE", help="The teacher: a Hugging Face model directory, or an endpoint's address ending in /v1."
        ),
    ],
    method: Annotated[str, typer.Option("--method", metavar="METHOD", help="What it plays; see `rolecast methods`.")],
    data: Annotated[Path, path_option("A folder that `rolecast data` wrote, or a file of questions with its corpus.jsonl beside it.")],
    out: Annotated[Path, path_option("Where episodes are kept; the same folder again goes on.")],
    n: Annotated[int | None, typer.Option("-n", min=1, help="Questions, the first ones; by default all.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of a question at most; it gets no more once one is kept.")] = 4,
    by: Annotated[Literal["em", "f1", "cem"], typer.Option(help="The score that makes an episode right.")] = "em",
    least: Annotated[float, typer.Option(min=0.01, max=1.0, help="How much of it.")] = 1.0,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the teacher.")] = 1.0,
    budget: Annotated[int | None, typer.Option(min=1, help="Tokens that the teacher may read and say in all; by default no limit.")] = None,
    model_name: ModelName = "",
    tokenizer: TokenizerPlace = "",
    key_env: KeyEnv = None,
    config: Annotated[Path | None, path_option("YAML with options of the method, the retriever and the engine.", "--config")] = None,
    overrides: Overrides = None,
) -> None:
    """Have a model play a method on real questions, and keep what is right and valid for SFT (stages.sft.demonstrations). With the model that
    is to be trained this is rejection sampling; of an endpoint, --tokenizer is the model that is to be trained."""
    from rolecast.data.card import counted
    from rolecast.stages.alone import trial_of
    from rolecast.stages.demonstrate import FEW, Wanted
    from rolecast.stages.demonstrate import demonstrate as run
    from rolecast.stages.models import Speaker, config_for

    speaker = Speaker(model, model_name, tokenizer, key_env)
    speaker.check()
    read = config_for(method, speaker, config, overrides or (), {"eval": {"n": n or 10**9}})
    folder, found, spent = run(trial_of(read, speaker, data, out), Wanted(samples, by, least, temperature, budget))
    print("\n".join([str(folder), *counted(found.counts())]))
    if found.both < FEW:
        print(
            f"of {found.episodes} episodes {found.told()}: {found.both} demonstrations teach the form of a reply at most; raise --samples or take "
            "a stronger teacher",
            file=sys.stderr,
        )
    if spent:
        print(f"the budget of {budget} tokens is spent; raise it to go on", file=sys.stderr)
