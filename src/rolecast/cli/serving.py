"""`rolecast agent serve` and `rolecast ask`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolecast.agent.settings import AgentSettings
from rolecast.cli.flags import takes_settings
from rolecast.cli.places import KeyEnv, MethodName, ModelName, ModelPlace, Overrides, TokenizerPlace, path_option
from rolecast.errors import InputError
from rolecast.scratch import scratch

if TYPE_CHECKING:
    from rolecast.agent.core import Agent, Asked
    from rolecast.stages.models import Speaker
    from rolecast.types import Trajectory

app = typer.Typer(help="Serve a trained team.")
Stage = Annotated[str | None, typer.Option(help="Whose model; by default the last that was trained.")]


@app.callback()
def _group() -> None:
    """Serve a trained team."""


@app.command()
@takes_settings(AgentSettings, argument="run")
def serve(settings: AgentSettings) -> None:
    """Answer questions over HTTP: /v1/chat/completions, /v1/models, KServe's v1 and v2, /traces, /healthz, /readyz, /metrics.

    S3 takes ROLECAST_S3_ENDPOINT and AWS credentials from the environment.
    """
    from rolecast.agent.app import make_agent
    from rolecast.service.server import serve as serve_app

    serve_app(*make_agent(settings), settings)


def ask(
    question: Annotated[str | None, typer.Argument(help="The question; without one, three of the run's test set are printed.")] = None,
    run: Annotated[str, typer.Option(help="The run: a folder or s3://bucket/prefix/NAME.")] = "runs/demo",
    stage: Stage = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The answer alone.")] = False,
    model: ModelPlace = None,
    method: MethodName = None,
    corpus: Annotated[Path | None, path_option("With --model: JSON lines of passages to search.")] = None,
    model_name: ModelName = "",
    tokenizer: TokenizerPlace = "",
    key_env: KeyEnv = None,
    overrides: Overrides = None,
) -> None:
    """Ask a trained team one question: what was searched, found and kept on the way, and the answer. With --model and --method no run is
    needed: every role speaks with that model."""
    if question is None:
        if model is not None:
            raise InputError("--model needs a question")
        propose(run)
        return
    from rolecast.agent.core import Asked
    from rolecast.errors import RolecastError
    from rolecast.rollout.trace_text import conversation, no_answer
    from rolecast.stages.models import Speaker
    from rolecast.stages.serve import open_agent

    if not question.strip():
        raise InputError("the question is empty")
    try:
        question.encode()
    except UnicodeEncodeError:
        raise InputError("the question is not valid UTF-8") from None
    with ExitStack() as kept:
        if model is None:
            agent = open_agent(run, stage)
        else:
            folder = kept.enter_context(scratch("ask"))
            agent = _untrained(Speaker(model, model_name, tokenizer, key_env), method, corpus, overrides or (), folder)
        episode = asyncio.run(_once(agent, Asked(question)))
    if episode.status == "length" and not episode.actions:
        raise InputError(f"the question does not fit into the team's context of {agent.max_context} tokens; shorten it")
    if quiet and not episode.answer:
        raise RolecastError(no_answer(episode).strip("()"))
    typer.echo(episode.answer if quiet else conversation(episode, lambda text: typer.style(text, bold=True)))  # plain in a pipe


async def _once(agent: Agent, asked: Asked) -> Trajectory:
    await agent.start()
    episode = await agent.ask(asked)
    await agent.stop()
    return episode


def _untrained(speaker: Speaker, method: str | None, corpus: Path | None, overrides: Sequence[str], folder: Path) -> Agent:
    from rolecast.stages.models import config_for
    from rolecast.stages.serve import open_model

    if method is None:
        raise InputError("--model needs --method, one of `rolecast methods`")
    if corpus is not None and not corpus.is_file():
        raise InputError(f"--corpus {corpus}: no such file; name the corpus.jsonl that `rolecast data convert` wrote")
    speaker.check()
    return open_model(speaker, config_for(method, speaker, None, overrides, {}), corpus, folder)


def propose(location: str) -> None:
    """Questions that the run's corpus can answer, one a line: what else is asked of an invented world has no answer."""
    from rolecast.stages.run import open_run
    from rolecast.stages.serve import proposals

    for text in proposals(open_run(location)):
        print(text)
    of = "" if location == "runs/demo" else f" --run {shlex.quote(location)}"
    print(f'questions of the run\'s test set; ask one by `rolecast ask{of} "…"`', file=sys.stderr)
