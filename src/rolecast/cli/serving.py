"""`rolecast agent serve` and `rolecast ask`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(help="Serve a trained team.")
Stage = Annotated[Literal["sft", "rl"] | None, typer.Option(help="Whose model; by default the last that was trained.")]


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8080,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    stage: Stage = None,
) -> None:
    """Answer questions over HTTP: /v1/chat/completions, /v1/models, /healthz, /readyz."""
    import uvicorn

    from rolecast.agent.app import make_app
    from rolecast.stages.run import open_run
    from rolecast.stages.serve import open_agent

    name = open_run(run).config.name
    uvicorn.run(make_app(open_agent(run, stage), name), host=host, port=port, log_level="info")


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    run: Annotated[Path, typer.Option(help="The run's folder.")] = Path("runs/demo"),
    stage: Stage = None,
) -> None:
    """Ask a trained team one question and show what each role said."""
    from rolecast.errors import InputError
    from rolecast.rollout.trace_text import conversation
    from rolecast.stages.serve import open_agent

    if not question.strip():
        raise InputError("the question is empty")
    agent = open_agent(run, stage)

    async def once() -> None:
        await agent.start()
        print(conversation(await agent.ask(question)))
        await agent.stop()

    asyncio.run(once())
