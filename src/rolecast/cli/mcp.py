"""`rolecast mcp`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from rolecast.errors import InputError


def mcp(
    run: Annotated[str | None, typer.Argument(help="The run whose team answers: a folder or s3://bucket/prefix/NAME.")] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="A running agent to ask instead. ROLECAST_TOKEN is its token.")] = None,
    stage: Annotated[str | None, typer.Option(help="Whose model of the run; by default the last that was trained.")] = None,
    http_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve streamable HTTP at 127.0.0.1:PORT/mcp instead of stdin and stdout.")
    ] = None,
) -> None:
    """Offer the team as a tool of the Model Context Protocol: ask(question) gives the answer, its evidence and the link to its trace."""
    if (run is None) == (url is None):
        raise InputError("who answers? Name a run, `rolecast mcp RUN`, or a running agent, `rolecast mcp --url http://host:8080`")
    from rolecast.agent.tool import agent_beside, agent_client, make_tool_server

    if run is not None:
        from rolecast.agent.settings import AgentSettings
        from rolecast.service.logs import configure_logging

        configure_logging("info", sys.stderr)  # stdout is the protocol's
        beside = agent_beside(AgentSettings(run=run, stage=stage, host="127.0.0.1", port=0, drain_seconds=5.0))
    with nullcontext(url) if url else beside as where:
        server = make_tool_server(agent_client(where))
        if http_port is None:
            server.run("stdio")
        else:
            server.run("streamable-http", host="127.0.0.1", port=http_port)
