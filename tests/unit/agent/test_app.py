"""The agent's routes over a scripted team: OpenAI's, the traces, and what is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted import EMPLOYER, MENTOR, ScriptedEngine, TableRetriever, passage, said

from rolecast.agent.app import make_agent
from rolecast.agent.core import Agent
from rolecast.agent.pages import render_trace
from rolecast.agent.settings import AgentSettings
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.rollout.render import Renderer
from tests.live import serving


class LocalScript(ScriptedEngine):
    """A scripted engine that never fails."""

    failure = None

    async def failed(self) -> Exception:
        await asyncio.Event().wait()
        raise AssertionError


LINES = {
    "planner": [said("search", MENTOR.query), said("search", EMPLOYER.query), said("search", "None")],
    "filter": [said("filter", MENTOR.sentence), said("filter", EMPLOYER.sentence)],
    "answerer": [said("answer", "Kel Dax")],
}
SAID = ["planner", "filter", "planner", "filter", "planner", "answerer"]
QUESTION = {"messages": [{"role": "user", "content": "Who employs the mentor?"}]}


@pytest.fixture
def url(renderer: Renderer) -> Iterator[str]:
    method = Decor(DecorConfig(prompts="compact", condenser="extractive"))
    engine = LocalScript(renderer, method, {role: texts * 4 for role, texts in LINES.items()})
    table = {MENTOR.query: [passage(MENTOR)], EMPLOYER.query: [passage(EMPLOYER)]}
    agent = Agent("team", method, engine, TableRetriever(table), renderer, 512)
    with serving(*make_agent(AgentSettings(run="r", keep_traces=2), lambda settings, retriever: agent)) as url:
        yield url


def ask(url: str, **more: object) -> dict[str, Any]:
    reply = httpx.post(f"{url}/v1/chat/completions", json={**QUESTION, **more})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_a_question_is_answered_with_its_trace_and_usage(url: str) -> None:
    reply = ask(url, model="team", temperature=0.7)
    message = {"role": "assistant", "content": "Kel Dax", "refusal": None}
    assert reply["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert [thread["role"] for thread in reply["rolecast"]["trace"]["threads"]] == SAID
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > usage["completion_tokens"] > 0


def test_streaming_holds_the_same_answer_and_ends_with_done(url: str) -> None:
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**QUESTION, "stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert "".join(delta["delta"].get("content", "") for delta in deltas) == "Kel Dax"
    assert [delta["finish_reason"] for delta in deltas] == [None, "stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert httpx.get(url + chunks[-1]["rolecast"]["trace_url"]).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": []}, 400),
        ({}, 400),
        ({"messages": [{"role": "user", "content": ""}]}, 400),
        ({"messages": [{"role": "user", "content": " \n"}]}, 400),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400),
        ({"messages": [{"role": "system", "content": "x"}]}, 400),
        ({"messages": [{"role": "user", "content": "x"}], "model": "other"}, 404),
        ({"messages": [{"role": "user", "content": " "}], "stream": True}, 400),
    ],
)
def test_bad_requests_are_refused_in_one_line(url: str, body: dict[str, object], status: int) -> None:
    reply = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert reply.status_code == status
    assert reply.json().keys() == {"error"}
    assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
    assert "\n" not in reply.json()["error"]["message"]


def test_half_a_surrogate_pair_is_refused(url: str) -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud800?"}]}'
    reply = httpx.post(f"{url}/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400


def test_the_last_traces_are_kept(url: str) -> None:
    places = [ask(url)["rolecast"]["trace_url"] for _ in range(3)]
    assert len(set(places)) == 3
    assert [httpx.get(url + place.replace("?", ".json?")).status_code for place in places] == [410, 200, 200]
    assert [httpx.get(url + place).status_code for place in places] == [410, 200, 200]
    trace = httpx.get(url + places[2].replace("?", ".json?")).json()
    assert trace["question"] == "Who employs the mentor?"
    assert (trace["answer"], trace["searches"]) == ("Kel Dax", 2)
    page = httpx.get(url + places[2])
    assert page.headers["content-type"].startswith("text/html")
    for shown in ("Kel Dax", MENTOR.query, MENTOR.sentence, "planner", "answerer"):
        assert shown in page.text


def test_a_page_holds_what_was_said_as_data_only() -> None:
    evil = "</script><script>alert(1)</script><!--"
    turn = {"kind": "action", "id": "a", "text": evil, "tokens": 1, "valid": True, "finish": "stop", "logprob": None, "rewards": []}
    trace = {
        "id": "ask-1", "question": evil, "type": "", "hops": 0, "golds": [], "answer": evil, "status": "ok", "searches": 0, "retrieved": [evil],
        "gold_passages": [], "rewards": [], "threads": [{"id": "t", "role": evil, "probe": False, "turns": [turn]}],
        "seconds": 0.5, "answered": "2026-01-01T00:00:00+00:00", "tokens": {"read": 1, "sampled": 1},
    }  # fmt: skip
    page = bytes(render_trace(trace, evil).body).decode()
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page
    assert "alert(1)" in page


def test_what_was_done_is_counted(url: str) -> None:
    usage = [ask(url)["usage"] for _ in range(2)]
    metrics = httpx.get(f"{url}/metrics").text
    assert "rolecast_agent_requests_waiting 0.0" in metrics
    assert "rolecast_agent_requests_running 0.0" in metrics
    assert "rolecast_agent_question_seconds_count 2.0" in metrics
    assert 'rolecast_agent_questions_total{status="ok"} 2.0' in metrics
    assert "rolecast_agent_searches_total 4.0" in metrics
    assert f'rolecast_agent_tokens_total{{kind="sampled"}} {float(sum(u["completion_tokens"] for u in usage))}' in metrics
    assert f'rolecast_agent_tokens_total{{kind="read"}} {float(sum(u["prompt_tokens"] for u in usage))}' in metrics


# Where there is no route, or no such model: the status, and what is said to be there, in the shape of the route's clients

CHAT = "POST /v1/chat/completions, GET /v1/models, GET /v1/models/{model}"
NOWHERE = [
    ("GET", "/nowhere", 404, "ours", "POST /ask, GET /, GET /traces"),
    ("GET", "/traces/a/b", 404, "ours", "GET /traces/{trace_id}"),
    ("POST", "/chat/completions", 404, "openai", "this service has POST /v1/chat/completions"),
    ("POST", "/v1/v1/chat/completions", 404, "openai", "this service has POST /v1/chat/completions"),
    ("PUT", "/ask", 405, "ours", "this path takes POST"),
    ("GET", "/v1", 404, "openai", CHAT),
    ("POST", "/v1/completions", 404, "openai", CHAT),
    ("GET", "/v1/chat/completions", 405, "openai", "this path takes POST"),
    ("GET", "/v1/models/other", 404, "openai", "this server has 'team'"),
    ("GET", "/v1/models/team:predict", 405, "kserve", "this path takes POST"),
    ("POST", "/v1/models/other:predict", 404, "kserve", "this server has 'team'"),
    ("GET", "/v2/nowhere", 404, "kserve", "GET /v2/models/{model_name}, "),
    ("GET", "/v2/models/other", 404, "kserve", "this server has 'team'"),
    ("GET", "/v2/models/other/ready", 404, "kserve", "this server has 'team'"),
    ("GET", "/v2/models/team/infer", 405, "kserve", "this path takes POST"),
]


@pytest.mark.parametrize(("method", "path", "status", "shape", "there"), NOWHERE)
def test_what_is_not_there_is_named_with_what_is(url: str, method: str, path: str, status: int, shape: str, there: str) -> None:
    reply = httpx.request(method, url + path, json={"instances": ["x"]} if method == "POST" else None)
    assert reply.status_code == status
    body = reply.json()
    message = body["detail"] if shape == "ours" else body["error"]["message"] if shape == "openai" else body["error"]
    assert set(body) == {"detail" if shape == "ours" else "error"}
    assert message.startswith("no model 'other'; " if "other" in path else "there is no ")
    assert "other" in path or path.rpartition("/")[2] in message.partition("; ")[0]
    assert there in message
    assert "\n" not in message
