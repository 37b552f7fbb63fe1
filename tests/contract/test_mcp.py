"""`rolecast mcp` with the package's own client: over stdio and HTTP, over a running agent that asks for tokens and over a run's folder."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters, stdio_client

from rolecast.agent.app import make_agent
from rolecast.agent.settings import AgentSettings
from rolecast.agent.tool import agent_beside, agent_client, make_tool_server
from rolecast.cli import main
from rolecast.stages import serve
from tests.live import serving
from tests.small_team import ANSWERS, QUESTION, small_team, taught

TOKEN = "a-token-of-sixteen-characters"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(TOKEN)
    settings = AgentSettings(run="r", tokens_file=str(tokens), max_question_characters=500)
    with serving(*make_agent(settings, small_team(taught()))) as url:
        yield url


async def called(server: Any, question: str) -> Any:
    async with Client(server) as client:
        [tool] = (await client.list_tools()).tools
        assert (tool.name, tool.input_schema["required"]) == ("ask", ["question"])
        return await client.call_tool("ask", {"question": question})


def test_over_stdio_the_answer_comes_with_its_evidence_and_a_link_that_opens(url: str) -> None:
    command = [sys.executable, "-m", "rolecast.cli.main", "mcp", "--url", url]
    environ = {**os.environ, "ROLECAST_TOKEN": TOKEN, "PYTHONPATH": str(ROOT / "src")}
    server = stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=environ))
    result = asyncio.run(called(server, QUESTION))
    assert not result.is_error
    reply = result.structured_content
    assert reply["answer"] in ANSWERS
    assert (reply["status"], reply["searches"], reply["evidence"]) == ("ok", 0, [])  # this team never searches
    page = httpx.get(reply["trace"])  # as a browser does, without a token
    assert page.status_code == 200
    assert reply["answer"] in page.text


def test_what_is_refused_is_told_to_the_model(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECAST_TOKEN", TOKEN)
    result = asyncio.run(called(make_tool_server(agent_client(url)), "x" * 501))
    assert result.is_error
    assert "501 characters; send at most 500" in result.content[0].text
    monkeypatch.setenv("ROLECAST_TOKEN", "another-of-sixteen-characters")
    result = asyncio.run(called(make_tool_server(agent_client(url)), QUESTION))
    assert result.is_error
    assert "set ROLECAST_TOKEN" in result.content[0].text


def test_over_a_run_that_is_served_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    team = small_team(taught())
    monkeypatch.setattr(serve, "open_agent", lambda run, stage, retriever, *_: team(AgentSettings(run=run), retriever))
    with agent_beside(AgentSettings(run="r", host="127.0.0.1", port=0)) as url:
        reply = asyncio.run(called(make_tool_server(agent_client(url)), QUESTION)).structured_content
        assert reply["answer"] in ANSWERS
        assert httpx.get(reply["trace"]).status_code == 200


def test_over_http(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import uvicorn

    from rolecast.service.server import listening

    monkeypatch.setenv("ROLECAST_TOKEN", TOKEN)
    with listening("127.0.0.1", 0) as sock:
        app = make_tool_server(agent_client(url)).streamable_http_app()
        server = uvicorn.Server(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        result = asyncio.run(called(f"http://127.0.0.1:{sock.getsockname()[1]}/mcp", QUESTION))
        server.should_exit = True
        thread.join(10)
    assert result.structured_content["answer"] in ANSWERS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "who answers?"),
        (["r", "--url", "http://x"], "who answers?"),
        (["/nowhere"], "/nowhere is not a run"),
        (["--url", "x"], "no http(s) URL"),
    ],
)
def test_what_cannot_be_offered_is_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rolecast", "mcp", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("{")]
    assert line.startswith("rolecast: ")
    assert said in line
