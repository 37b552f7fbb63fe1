"""Paths on the command line, and options that several commands have. `pathlib` makes s3:/b/x of s3://b/x, so an address must be told before it is a path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rolecast.errors import InputError


def _here(text: Any) -> Path:
    if "://" in str(text):
        raise InputError(
            f"{text} is an address, and this command reads and writes files here; name a path, and copy what is to lie elsewhere"
        )
    return Path(text)


def _run_here(text: Any) -> Path:
    if "://" in str(text):
        raise InputError(
            f"{text} is an address, and this command trains into a folder here; for a run in a store use `rolecast run create`, "
            "`train` and `eval`, or `rolecast pipeline submit`"
        )
    return Path(text)


def _runs_here(text: Any) -> Path:
    if "://" in str(text):
        raise InputError(
            f"{text} is an address, and this command writes into a folder here; `rolecast pipeline compare` compares runs in a store"
        )
    return Path(text)


def path_option(help: str, *names: str) -> Any:
    """Of a file or folder here."""
    return typer.Option(*names, parser=_here, metavar="PATH", help=help)


def path_argument(help: str) -> Any:
    return typer.Argument(parser=_here, metavar="PATH", help=help)


def run_option(help: str) -> Any:
    """`--run`, of a command that takes a folder alone."""
    return typer.Option("--run", parser=_run_here, metavar="PATH", help=help)


def runs_option(help: str) -> Any:
    """`--out`, of a command that makes several runs or reads them."""
    return typer.Option(parser=_runs_here, metavar="PATH", help=help)


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override of the config, or of what the run has; as often as you like."),
]
ModelPlace = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="PLACE", help="Instead of a run: a Hugging Face model directory, or an endpoint's address ending in /v1."
    ),
]
MethodName = Annotated[str | None, typer.Option("--method", metavar="METHOD", help="With --model: how it plays; see `rolecast methods`.")]
ModelName = Annotated[str, typer.Option("--model-name", metavar="NAME", help="With an endpoint: the model's name there.")]
TokenizerPlace = Annotated[
    str, typer.Option("--tokenizer", metavar="DIR", help="With an endpoint: a model directory whose tokenizer counts its tokens.")
]
KeyEnv = Annotated[
    str | None, typer.Option("--key-env", metavar="NAME", help="With an endpoint: the environment variable that holds its key.")
]
