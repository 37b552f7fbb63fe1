"""Questions and logs: nothing that somebody asked is logged unless the service is told to."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from teams import OneLine, opened

from rolecast.agent.app import make_agent
from rolecast.agent.core import Agent, Asked
from rolecast.agent.settings import AgentSettings
from rolecast.errors import InputError, RolecastError
from rolecast.rollout.render import Renderer
from tests.live import serving
from tests.logged import logged

QUESTION = "Who-is-the-secret-mentor of Brol Tan?"
FAULTS = [
    RolecastError(f"the retriever is away; it was asked {QUESTION}"), InputError(f"query {QUESTION!r} is none"), ValueError(QUESTION),
    KeyError(QUESTION),
]  # fmt: skip


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    with logged("debug") as stream:
        yield stream


def asked(renderer: Renderer, fault: Exception | None, log_questions: bool, monkeypatch: pytest.MonkeyPatch) -> list[httpx.Response]:
    """One question by each protocol."""
    engine = OneLine(renderer)
    engine.gate.set()
    if fault is not None:

        async def fail(self: Agent, asked: Asked) -> None:
            raise fault

        monkeypatch.setattr(Agent, "ask", fail)
    with serving(*make_agent(AgentSettings(run="r", log_questions=log_questions), opened(engine))) as url:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]}
        return [
            httpx.post(f"{url}/v1/chat/completions", json=body),
            httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": True}),
            httpx.post(f"{url}/v1/models/team:predict", json={"instances": [QUESTION]}),
            httpx.post(f"{url}/ask", json={"question": QUESTION}),
            httpx.post(f"{url}/ask", json={"question": QUESTION, QUESTION: 1}),
            httpx.post(f"{url}/v1/chat/completions", json={**body, "n": 3}),
            httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": QUESTION, "content": QUESTION}]}),
        ]


@pytest.mark.parametrize("fault", [None, *FAULTS], ids=repr)
def test_no_question_reaches_the_log(
    renderer: Renderer, fault: Exception | None, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = asked(renderer, fault, False, monkeypatch)
    expected = 200 if fault is None else 503 if isinstance(fault, RolecastError) else 500
    assert [reply.status_code for reply in replies] == [expected, 200, expected, 200, 400, 400, 400]
    text = lines.getvalue()
    assert "secret-mentor" not in text
    assert text.count("a question was not answered") == (0 if fault is None else 4)
    if fault is not None and not isinstance(fault, RolecastError):
        assert type(fault).__name__ in text
        assert "test_quiet.py" in text  # the place is told
        assert replies[0].json()["error"]["message"] == f"internal error: {type(fault).__name__}"


@pytest.mark.parametrize("fault", [None, *FAULTS], ids=repr)
def test_questions_are_logged_where_that_is_asked_for(
    renderer: Renderer, fault: Exception | None, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(renderer, fault, True, monkeypatch)
    assert lines.getvalue().count("secret-mentor") >= 3
