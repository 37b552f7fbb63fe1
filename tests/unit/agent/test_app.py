from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from scripted import EMPLOYER, MENTOR, ScriptedEngine, TableRetriever, passage, said

from rolecast.agent.app import make_app
from rolecast.agent.core import Agent
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.rollout.render import Renderer


class LocalScript(ScriptedEngine):
    """A scripted engine with nothing to step."""

    waiting = 0
    busy = False

    def step(self, admit: bool = True) -> None: ...

    def drain(self) -> None: ...


LINES = {
    "planner": [said("search", MENTOR.query), said("search", EMPLOYER.query), said("search", "None")],
    "filter": [said("filter", MENTOR.sentence), said("filter", EMPLOYER.sentence)],
    "answerer": [said("answer", "Kel Dax")],
}


@pytest.fixture
def client(renderer: Renderer) -> Iterator[TestClient]:
    method = Decor(DecorConfig(prompts="compact", condenser="extractive"))
    engine = LocalScript(renderer, method, {role: texts * 3 for role, texts in LINES.items()})
    table = {MENTOR.query: [passage(MENTOR)], EMPLOYER.query: [passage(EMPLOYER)]}
    with TestClient(make_app(Agent(method, engine, TableRetriever(table), renderer, 512), "team")) as client:
        yield client


def ask(client: TestClient, **body: object) -> dict[str, object]:
    reply = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Q?"}], **body})
    assert reply.status_code == 200, reply.text
    answer: dict[str, object] = reply.json()
    return answer


def test_a_question_is_answered_with_its_trace_and_usage(client: TestClient) -> None:
    reply = ask(client)
    assert reply["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "Kel Dax"}, "finish_reason": "stop"}]
    trace = reply["rolecast"]["trace"]  # type: ignore[index]
    assert [thread["role"] for thread in trace["threads"]] == ["planner", "filter", "planner", "filter", "planner", "answerer"]
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0  # type: ignore[index,call-overload]


def test_streaming_ends_with_done_and_holds_the_same_answer(client: TestClient) -> None:
    with client.stream("POST", "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Q?"}], "stream": True}) as reply:
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert "".join(delta["delta"].get("content", "") for delta in deltas) == "Kel Dax"
    assert deltas[-1]["finish_reason"] == "stop"


def test_models_and_health(client: TestClient) -> None:
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["team"]
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": []}, 422),
        ({}, 422),
        ({"messages": [{"role": "user", "content": ""}]}, 422),
        ({"messages": [{"role": "tool", "content": "x"}]}, 422),
        ({"messages": [{"role": "system", "content": "x"}]}, 422),
        ({"messages": [{"role": "user", "content": "x"}], "model": "other"}, 404),
    ],
)
def test_bad_requests_are_refused(client: TestClient, body: dict[str, object], status: int) -> None:
    assert client.post("/v1/chat/completions", json=body).status_code == status
