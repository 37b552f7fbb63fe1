"""`rolecast agent serve` and `rolecast ask`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rolecast.types import Trajectory

app = typer.Typer(help="Serve a trained team.")
Stage = Annotated[str | None, typer.Option(help="Whose model; by default the last that was trained.")]


@app.callback()
def _group() -> None:
    """Serve a trained team."""


@app.command()
def serve(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The run: a folder or s3://bucket/prefix/NAME.")] = None,
    stage: Annotated[str | None, typer.Option(help="Whose model; by default the last that was trained.")] = None,
    model_name: Annotated[str | None, typer.Option(help="The model's id for clients; by default the run's name.")] = None,
    retriever_url: Annotated[str | None, typer.Option(metavar="URL", help="The retriever to search; else the run's own index.")] = None,
    retriever_patience: Annotated[str | None, typer.Option(help="Seconds that a search waits for the retriever (20).")] = None,
    max_live: Annotated[str | None, typer.Option(help="Questions answered at once (64).")] = None,
    max_waiting: Annotated[str | None, typer.Option(help="Questions that wait; more are refused with 429 (256).")] = None,
    max_question_characters: Annotated[str | None, typer.Option(help="Longer questions are refused (16384).")] = None,
    keep_traces: Annotated[str | None, typer.Option(help="How many of the last answers have a trace page (256).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (::, which is all).")] = None,
    rewriter: Annotated[
        str | None, typer.Option(metavar="SLOT", help="Whose model makes one question of several user turns; else they are refused.")
    ] = None,
    log_questions: Annotated[str | None, typer.Option(metavar="BOOL", help="Whether questions and answers go to the log (false).")] = None,
    port: Annotated[str | None, typer.Option(help="Port to listen on; 0 takes a free one (8080).")] = None,
    metrics_port: Annotated[
        str | None, typer.Option(help="Port of /metrics and /openapi.json; by default that of the other routes.")
    ] = None,
    tokens_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Bearer tokens, one a line; without it everybody may ask.")
    ] = None,
    max_body_bytes: Annotated[str | None, typer.Option(help="Larger requests are refused (8388608).")] = None,
    drain_seconds: Annotated[str | None, typer.Option(help="How long questions may take after SIGTERM (30).")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error (info).")] = None,
) -> None:
    """Answer questions over HTTP: /v1/chat/completions, /v1/models, KServe's v1 and v2, /traces, /healthz, /readyz, /metrics.

    RUN and every option can be given as ROLECAST_<NAME> instead. S3 takes ROLECAST_S3_ENDPOINT and AWS credentials from the
    environment.
    """
    flags = dict(locals())
    from rolecast.agent.app import AgentSettings, make_agent
    from rolecast.service.server import serve as serve_app
    from rolecast.service.settings import read_settings

    settings = read_settings(AgentSettings, flags)
    serve_app(*make_agent(settings), settings)


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    run: Annotated[str, typer.Option(help="The run: a folder or s3://bucket/prefix/NAME.")] = "runs/demo",
    stage: Stage = None,
) -> None:
    """Ask a trained team one question and show what each role said."""
    from rolecast.agent.core import Asked
    from rolecast.errors import InputError
    from rolecast.rollout.trace_text import conversation
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
    print(conversation(episode))
