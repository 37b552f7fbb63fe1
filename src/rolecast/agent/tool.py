"""The team as a tool of the Model Context Protocol: `ask`, over a running agent. Importing this needs the extra `mcp`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urljoin

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from rolecast.errors import RolecastError
from rolecast.service.client import JsonClient
from rolecast.service.tokens import OwnToken

if TYPE_CHECKING:
    from rolecast.agent.settings import AgentSettings

INSTRUCTIONS = "Ask a team of search agents. It searches a corpus of its own, and answers with what it found there."
ASK_SECONDS = 300.0  # that one try may take
PATIENCE = 30.0  # that the agent may be away or full


class Evidence(BaseModel):
    id: str
    title: str
    text: str


class Reply(BaseModel):
    answer: str | None = Field(description="None if the team found no answer; `status` says why.")
    status: str = Field(description='"ok", "format" (a role did not keep to its format) or "length" (a context was full).')
    searches: int
    evidence: list[Evidence] = Field(description="The passages that the team's searches found, in their order.")
    trace: str = Field(description="A page that shows what each role saw, searched and said. It opens without a token until it expires.")


def agent_client(url: str) -> JsonClient:
    return JsonClient("agent", url, timeout=ASK_SECONDS, patience=PATIENCE, headers=OwnToken().headers)


def make_tool_server(client: JsonClient) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("rolecast", instructions=INSTRUCTIONS, log_level="WARNING")

    @server.tool()
    async def ask(question: Annotated[str, Field(description="One question that stands alone, in plain words.")]) -> Reply:
        """Ask the team one question. It searches its corpus in several steps, and answers with the evidence and a link to its trace."""
        body = {"messages": [{"role": "user", "content": question}]}
        try:
            return _reply(await client.post("/v1/chat/completions", body), client.url)
        except RolecastError as error:
            raise ToolError(str(error)) from None

    return server


def _reply(body: dict[str, Any], url: str) -> Reply:
    told, message = body["rolecast"], body["choices"][0]["message"]
    trace = told["trace"]
    link = urljoin(f"{url}/", told["trace_url"].lstrip("/"))
    return Reply(answer=message["content"], status=told["status"], searches=trace["searches"], evidence=trace["passages"], trace=link)


@contextmanager
def agent_beside(settings: AgentSettings) -> Iterator[str]:
    """The address of an agent of a run, served in this process once it is ready. Raises what kept it from starting."""
    from rolecast.agent.app import make_agent
    from rolecast.service.server import Server, listening

    app, service = make_agent(settings)
    with listening(settings.host, settings.port) as sock:
        thread = threading.Thread(target=Server(app, service, settings.drain_seconds).run, args=([sock],), name="agent", daemon=True)
        thread.start()
        try:
            while service.status != "ready" and service.failure is None:
                time.sleep(0.05)
            if service.failure is not None:
                raise service.failure
            yield f"http://{settings.host}:{sock.getsockname()[1]}"
        finally:
            service.drain()
            thread.join(settings.drain_seconds)
