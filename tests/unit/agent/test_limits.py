"""Limits, waiting, draining and outages: what happens to questions when there are too many, or something is away."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from scripted import MENTOR, passage
from teams import OneLine, opened

from rolecast.agent import app as agent_app
from rolecast.agent import chat
from rolecast.agent.app import make_agent
from rolecast.agent.core import Agent, Asked
from rolecast.agent.episodes import Episodes
from rolecast.agent.settings import AgentSettings
from rolecast.ports import Retriever
from rolecast.retriever.app import make_retriever
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.rollout.render import Renderer
from rolecast.service.errors import said
from rolecast.service.server import Server, listening
from rolecast.service.state import Service
from rolecast.types import Trajectory
from tests.live import serving

QUESTION = {"messages": [{"role": "user", "content": "Who is the mentor of Brol Tan?"}]}


@pytest.fixture
def engine(renderer: Renderer) -> Iterator[OneLine]:
    engine = OneLine(renderer)
    yield engine
    engine.gate.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def eventually(check: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ask(url: str, **more: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json={**QUESTION, **more}, timeout=30)


def metric(url: str, name: str) -> float:
    lines = dict(line.rsplit(" ", 1) for line in httpx.get(f"{url}/metrics").text.splitlines() if not line.startswith("#"))
    return float(lines.get(name, 0))


def test_so_many_are_played_so_many_wait_and_more_are_refused(engine: OneLine, pool: ThreadPoolExecutor) -> None:
    with serving(*make_agent(AgentSettings(run="r", max_live=2, max_waiting=3), opened(engine))) as url:
        asked = [pool.submit(ask, url) for _ in range(5)]
        eventually(lambda: metric(url, "rolecast_agent_requests_waiting") == 3)
        assert metric(url, "rolecast_agent_requests_running") == 2
        for refused in (ask(url), ask(url, stream=True), httpx.post(f"{url}/v1/models/team:predict", json={"instances": ["Q?"]})):
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert said(refused.json()) == "3 questions are waiting; try again"
        engine.gate.set()
        assert [reply.result().status_code for reply in asked] == [200] * 5
        eventually(lambda: metric(url, "rolecast_agent_requests_waiting") == 0)
        assert ask(url).status_code == 200
    assert engine.most_at_once == 2


def test_probes_and_refusals_do_not_wait_for_the_engine(engine: OneLine, pool: ThreadPoolExecutor) -> None:
    engine.step_gate = threading.Event()
    with serving(*make_agent(AgentSettings(run="r", max_live=1, max_waiting=0), opened(engine))) as url:
        asked = pool.submit(ask, url)
        eventually(lambda: engine.asked == 1)
        time.sleep(0.05)
        assert httpx.get(f"{url}/healthz", timeout=3).status_code == 200
        assert httpx.post(f"{url}/v1/chat/completions", json=QUESTION, timeout=3).status_code == 429
        engine.step_gate.set()
        engine.gate.set()
        assert asked.result().status_code == 200


def test_of_many_instances_all_are_taken_or_none(engine: OneLine, pool: ThreadPoolExecutor) -> None:
    with serving(*make_agent(AgentSettings(run="r", max_live=2, max_waiting=1), opened(engine))) as url:
        first = pool.submit(ask, url)
        eventually(lambda: engine.at_once == 1)
        refused = httpx.post(f"{url}/v1/models/team:predict", json={"instances": ["Q?"] * 3})
        assert refused.status_code == 429
        assert metric(url, "rolecast_agent_requests_running") == 1
        engine.gate.set()
        assert first.result().status_code == 200
        assert len(httpx.post(f"{url}/v1/models/team:predict", json={"instances": ["Q?"] * 3}).json()["predictions"]) == 3


BODIES = {
    "answer": ("/v1/chat/completions", QUESTION), "stream": ("/v1/chat/completions", {**QUESTION, "stream": True}),
    "v1": ("/v1/models/team:predict", {"instances": ["Q?", "Q?"]}),
    "v2": ("/v2/models/team/infer", {"inputs": [{"name": "question", "datatype": "BYTES", "shape": [2], "data": ["Q?", "Q?"]}]}),
}  # fmt: skip


@pytest.mark.parametrize("kind", BODIES)
def test_a_client_that_goes_stops_its_questions_and_gives_their_places_back(engine: OneLine, kind: str) -> None:
    with serving(*make_agent(AgentSettings(run="r", max_live=2, max_waiting=0), opened(engine))) as url:
        path, sent = BODIES[kind]
        body, asked = json.dumps(sent).encode(), 2 if kind in ("v1", "v2") else 1
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            eventually(lambda: engine.asked == asked)
        eventually(lambda: metric(url, 'rolecast_agent_questions_total{status="cancelled"}') == asked)
        eventually(lambda: engine.at_once == 0)
        engine.gate.set()
        assert ask(url).status_code == 200
        gone = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if "_total{" in line and 'status="499"' in line]
        assert len(gone) == 1 or kind == "stream"  # a stream's status was sent before


def test_a_long_question_is_refused_before_it_takes_the_teams_thread(engine: OneLine) -> None:
    engine.gate.set()
    with serving(*make_agent(AgentSettings(run="r", max_question_characters=1000), opened(engine))) as url:
        long = "mentor " * 1_000_000
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
            ("/v1/models/team:predict", {"instances": ["Q?", long]}),
        ):
            reply = httpx.post(url + path, json=body, timeout=30)
            assert (reply.status_code, said(reply.json())) == (400, "the question has 7000000 characters; send at most 1000")
        assert engine.asked == 0
        assert ask(url, messages=[{"role": "user", "content": "x" * 1000}]).status_code == 200


def test_a_task_that_is_cancelled_before_it_runs_gives_its_place_back() -> None:
    async def never(asked: Asked) -> Trajectory:
        raise AssertionError

    async def run() -> None:
        episodes = Episodes(never, max_live=1, max_waiting=0, keep=1, registry=CollectorRegistry())
        for _ in range(2):
            [task] = episodes.submit([Asked("Q?")])
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(run())


def test_a_stream_is_kept_open_by_comments(engine: OneLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "KEEP_ALIVE", 0.02)
    with serving(*make_agent(AgentSettings(run="r"), opened(engine))) as url:
        lines = []
        with httpx.stream("POST", f"{url}/v1/chat/completions", json={**QUESTION, "stream": True}, timeout=10) as reply:
            for line in reply.iter_lines():
                lines.append(line)
                if len(lines) == 5:
                    engine.gate.set()
    comments = [line for line in lines if line.startswith(":")]
    data = [line for line in lines if line.startswith("data: ")]
    assert len(comments) >= 3
    assert all(line == "" for line in lines if line not in comments and line not in data)
    assert data[-1] == "data: [DONE]"
    assert json.loads(data[0].removeprefix("data: "))["choices"][0]["delta"]["content"] == "Kel Dax"


def start(app: FastAPI, service: Service, drain_seconds: float = 10.0) -> tuple[str, threading.Thread]:
    sock = listening("127.0.0.1", 0)
    thread = threading.Thread(target=Server(app, service, drain_seconds).run, args=([sock],), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    eventually(lambda: httpx.get(f"{url}/healthz").status_code == 200)
    return url, thread


def test_it_is_alive_while_it_loads_and_ready_afterwards(engine: OneLine) -> None:
    loaded = threading.Event()

    def slowly(settings: AgentSettings, retriever: Retriever | None) -> Agent:
        loaded.wait(10)  # blocks, as loading a model does
        return opened(engine)(settings, retriever)

    engine.gate.set()
    app, service = make_agent(AgentSettings(run="r"), slowly)
    url, thread = start(app, service)
    for path in ("/readyz", "/v1/models", "/v1/models/team", "/v2/health/ready", "/traces/x"):
        assert httpx.get(url + path).status_code == 503, path
    assert ask(url).status_code == 503
    assert httpx.get(f"{url}/healthz").status_code == 200
    loaded.set()
    eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200)
    assert ask(url).status_code == 200
    service.drain()
    thread.join(10)
    assert not thread.is_alive()


def test_questions_in_flight_and_waiting_finish_while_it_drains(engine: OneLine, pool: ThreadPoolExecutor) -> None:
    app, service = make_agent(AgentSettings(run="r", max_live=1, max_waiting=5), opened(engine))
    url, thread = start(app, service)
    eventually(lambda: service.status == "ready")
    asked = [pool.submit(ask, url, stream=stream) for stream in (False, True)]
    eventually(lambda: metric(url, "rolecast_agent_requests_waiting") == 1)
    service.drain()
    assert httpx.get(f"{url}/readyz").status_code == 503
    refused = ask(url)
    assert (refused.status_code, said(refused.json())) == (503, "the agent is draining; try again")
    time.sleep(0.3)
    assert thread.is_alive()
    engine.gate.set()
    replies = [reply.result(10) for reply in asked]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert all("Kel Dax" in reply.text for reply in replies)
    thread.join(10)
    assert not thread.is_alive()


def test_an_engine_that_fails_ends_the_server_and_its_questions(engine: OneLine) -> None:
    app, service = make_agent(AgentSettings(run="r"), opened(engine))
    url, thread = start(app, service)
    eventually(lambda: service.status == "ready")
    engine.broken = True
    reply = ask(url)
    assert (reply.status_code, said(reply.json())) == (503, "the engine failed while the team was answering")
    thread.join(10)
    assert not thread.is_alive()
    assert str(service.failure) == "no such kernel"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "index"
    build_index([passage(MENTOR)], path, "bm25")
    return path


def free_port() -> int:
    with listening("127.0.0.1", 0) as sock:
        port: int = sock.getsockname()[1]
    return port


def with_retriever(port: int, engine: OneLine, patience: float) -> tuple[FastAPI, Service]:
    settings = AgentSettings(run="r", retriever_url=f"http://127.0.0.1:{port}", retriever_patience=patience)
    return make_agent(settings, opened(engine))


def test_ready_once_the_retriever_answers_and_no_longer_when_it_goes(engine: OneLine, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_app, "PROBE_SECONDS", 0.05)
    engine.gate.set()
    port = free_port()
    app, service = with_retriever(port, engine, patience=0)
    url, thread = start(app, service)
    time.sleep(0.5)
    assert (httpx.get(f"{url}/healthz").status_code, httpx.get(f"{url}/readyz").status_code) == (200, 503)
    for _ in range(2):
        with serving(*make_retriever(RetrieverSettings(index=str(index), topk=1)), port=port):
            eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200)
            trace = ask(url).json()["rolecast"]["trace"]
            assert trace["retrieved"] == [passage(MENTOR).id]
        eventually(lambda: httpx.get(f"{url}/readyz").status_code == 503)
    service.drain()
    thread.join(10)
    assert service.status == "draining"
    assert not thread.is_alive()


def test_a_question_waits_for_a_retriever_that_is_restarting(engine: OneLine, index: Path, pool: ThreadPoolExecutor) -> None:
    engine.gate.set()
    port = free_port()
    app, service = with_retriever(port, engine, patience=10)
    url, thread = start(app, service)
    time.sleep(0.3)
    assert httpx.get(f"{url}/readyz").status_code == 503
    with serving(*make_retriever(RetrieverSettings(index=str(index), topk=1)), port=port):
        eventually(lambda: service.status == "ready")
    asked: Future[httpx.Response] = pool.submit(ask, url)
    time.sleep(0.5)
    assert not asked.done()
    with serving(*make_retriever(RetrieverSettings(index=str(index), topk=1)), port=port):
        assert asked.result(10).json()["choices"][0]["message"]["content"] == "Kel Dax"
        service.drain()
        thread.join(10)


def test_a_question_without_a_retriever_is_unavailable_not_an_error_of_ours(engine: OneLine, index: Path) -> None:
    engine.gate.set()
    port = free_port()
    app, service = with_retriever(port, engine, patience=0.2)
    url, thread = start(app, service)
    with serving(*make_retriever(RetrieverSettings(index=str(index), topk=1)), port=port):
        eventually(lambda: service.status == "ready")
    reply = ask(url)
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
    assert f"retriever at http://127.0.0.1:{port} did not answer" in str(said(reply.json()))
    assert httpx.post(f"{url}/v1/models/team:predict", json={"instances": ["Q?"]}).status_code == 503
    [event] = [line for line in ask(url, stream=True).text.splitlines() if line]
    assert "did not answer" in json.loads(event.removeprefix("data: "))["error"]["message"]
    assert metric(url, 'rolecast_agent_questions_total{status="error"}') == 3
    service.drain()
    thread.join(10)
