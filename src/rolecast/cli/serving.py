"""`rolecast agent serve` and `rolecast ask`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rolecast.agent.settings import AgentSettings
from rolecast.cli.flags import takes_settings

if TYPE_CHECKING:
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
) -> None:
    """Ask a trained team one question: what was searched, found and kept on the way, and the answer."""
    if question is None:
        propose(run)
        return
    from rolecast.agent.core import Asked
    from rolecast.errors import InputError, RolecastError
    from rolecast.rollout.trace_text import conversation, no_answer
    from rolecast.stages.serve import open_agent

    if not question.strip():
        raise InputError("the question is empty")
    try:
        question.encode()
    except UnicodeEncodeError:
        raise InputError("the question is not valid UTF-8") from None
    agent = open_agent(run, stage)

    async def once() -> Trajectory:
        await agent.start()
        episode = await agent.ask(Asked(question))
        await agent.stop()
        return episode

    episode = asyncio.run(once())
    if episode.status == "length" and not episode.actions:
        raise InputError(f"the question does not fit into the team's context of {agent.max_context} tokens; shorten it")
    if quiet and not episode.answer:
        raise RolecastError(no_answer(episode).strip("()"))
    typer.echo(episode.answer if quiet else conversation(episode, lambda text: typer.style(text, bold=True)))  # plain in a pipe


def propose(location: str) -> None:
    """Questions that the run's corpus can answer, one a line: what else is asked of an invented world has no answer."""
    from rolecast.stages.run import open_run
    from rolecast.stages.serve import proposals

    for text in proposals(open_run(location)):
        print(text)
    print('questions of the run\'s test set; ask one by `rolecast ask "…"`', file=sys.stderr)
