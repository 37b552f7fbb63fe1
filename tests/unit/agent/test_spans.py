"""One question's spans over real HTTP: agent, retriever, judge and engine, each behind a server of its own, in one tree."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted import MENTOR, passage
from teams import OneLine

from rolecast import spans
from rolecast.agent.app import make_agent
from rolecast.agent.core import Agent
from rolecast.agent.settings import AgentSettings
from rolecast.errors import InputError
from rolecast.judge.app import make_judge
from rolecast.judge.client import HttpJudge
from rolecast.judge.openai import OpenAIJudge
from rolecast.judge.settings import JudgeSettings
from rolecast.methods.naive_rag import NaiveRag, NaiveRagConfig
from rolecast.opentelemetry_spans import OpenTelemetry
from rolecast.ports import Completion, GenerateRequest, Retriever
from rolecast.retriever.app import make_retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.rollout.render import Renderer
from rolecast.service import tracing
from rolecast.service.app import make_app
from rolecast.service.client import JsonClient
from rolecast.service.state import Service
from rolecast.types import Gold
from tests.endpoint import completion
from tests.live import serving
from tests.tiny import TOKENIZER

QUESTION = "Who is the mentor of Brol Tan?"
CAME = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.use(OpenTelemetry(provider))
    yield exporter
    spans.use(None)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(TOKENIZER)


class Seen:
    """An engine's server: an OpenAI-compatible endpoint with our frame around it, which notes the headers that it is shown."""

    def __init__(self) -> None:
        self.traceparents: list[str] = []
        self.service = Service("engine")

        @asynccontextmanager
        async def live() -> Any:
            yield

        self.app: FastAPI = make_app(self.service, live)

        @self.app.post("/chat/completions")
        async def answer(request: Request) -> dict[str, Any]:
            self.traceparents.append(request.headers.get("traceparent", ""))
            return completion("Score: 1")


class OverHttp(OneLine):
    """Asks the endpoint before it says its line."""

    client: JsonClient

    async def generate(self, request: GenerateRequest) -> Completion:
        await self.client.post("/chat/completions", {})
        return await super().generate(request)


@pytest.fixture
def platform(renderer: Renderer, tmp_path: Path) -> Iterator[tuple[str, str, Seen]]:
    """Addresses of the agent and of the judge."""
    build_index([passage(MENTOR)], tmp_path / "index", "bm25")
    seen, engine = Seen(), OverHttp(renderer)
    engine.gate.set()

    def open_team(settings: AgentSettings, retriever: Retriever | None) -> Agent:
        assert retriever is not None
        return Agent("team", NaiveRag(NaiveRagConfig(k=1)), engine, retriever, renderer, 512)

    with (
        serving(seen.app, seen.service) as endpoint,
        serving(*make_retriever(RetrieverSettings(index=str(tmp_path / "index"), topk=1))) as retriever,
        serving(*make_judge(JudgeSettings(), OpenAIJudge(endpoint, "m"))) as judge,
    ):
        engine.client = JsonClient("engine", endpoint)
        with serving(*make_agent(AgentSettings(run="r", retriever_url=retriever), open_team)) as agent:
            yield agent, judge, seen


def ask(agent: str, **headers: str) -> None:
    reply = httpx.post(
        f"{agent}/v1/chat/completions", json={"messages": [{"role": "user", "content": QUESTION}]}, headers=headers, timeout=30
    )
    assert reply.status_code == 200, reply.text


def branches(found: tuple[ReadableSpan, ...]) -> set[str]:
    """Each span as its path from the root of its trace."""
    by_id = {span.context.span_id: span for span in found if span.context}

    def path(span: ReadableSpan) -> str:
        above = by_id.get(span.parent.span_id) if span.parent else None
        return f"{path(above)} > {span.name}" if above else span.name

    return {path(span) for span in found}


SEARCHED = "agent answers > question > search > search together > POST /retrieve of retriever"
TREE = {
    "agent answers",
    "agent answers > question",
    "agent answers > question > search",
    "agent answers > question > search > search together",
    SEARCHED,
    f"{SEARCHED} > retriever answers",
    f"{SEARCHED} > retriever answers > search together",
    "agent answers > question > sample",
    "agent answers > question > sample > POST /chat/completions of engine",
    "agent answers > question > sample > POST /chat/completions of engine > engine answers",
}


def of_question(exporter: InMemorySpanExporter, count: int = 1) -> list[tuple[ReadableSpan, ...]]:
    """The spans of each trace with a question in it: probes of the retriever are traces of their own. A server's span ends after its
    reply was read."""
    deadline = time.monotonic() + 10
    while sum(span.name == "agent answers" for span in exporter.get_finished_spans()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = exporter.get_finished_spans()
    traces = {span.context.trace_id for span in found if span.name == "question"}
    return [tuple(span for span in found if span.context.trace_id == trace) for trace in traces]


def test_one_questions_spans_are_one_tree(platform: tuple[str, str, Seen], exporter: InMemorySpanExporter) -> None:
    agent, _, seen = platform
    ask(agent)
    (trace,) = of_question(exporter)
    assert branches(trace) == TREE
    (root,) = [span for span in trace if span.parent is None]
    assert root.name == "agent answers"
    assert {part[3:35] for part in seen.traceparents} == {f"{root.context.trace_id:032x}"}
    told = str([(span.attributes, span.status.description, span.events) for span in trace])
    assert "Brol Tan" not in told


def test_a_second_question_is_a_tree_of_its_own(platform: tuple[str, str, Seen], exporter: InMemorySpanExporter) -> None:
    """What carries searches together began in the first one's request, and outlives it."""
    for _ in range(2):
        ask(platform[0])
    assert [branches(trace) for trace in of_question(exporter, 2)] == [TREE, TREE]


def test_a_trace_that_a_caller_began_goes_on(platform: tuple[str, str, Seen], exporter: InMemorySpanExporter) -> None:
    ask(platform[0], traceparent=CAME)
    (trace,) = of_question(exporter)
    assert {f"{span.context.trace_id:032x}" for span in trace} == {CAME[3:35]}
    (first,) = [span for span in trace if span.name == "agent answers"]
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == CAME[36:52]


def test_a_judges_spans_reach_the_model_behind_it(platform: tuple[str, str, Seen], exporter: InMemorySpanExporter) -> None:
    async def judged() -> None:
        judge = HttpJudge(platform[1])
        with spans.span("score"):
            verdict = await judge.judge(
                "decor.answerer", {"content": "Kel Dax", "memory": "", "question": QUESTION, "gold": Gold(("Kel Dax",))}
            )
        assert verdict.reason is not None
        await judge.close()

    asyncio.run(judged())
    found = exporter.get_finished_spans()
    (trace,) = {span.context.trace_id for span in found if span.name == "score"}
    paths = branches(tuple(span for span in found if span.context.trace_id == trace))
    asked = "score > POST /v1/judge of judge > judge answers"
    assert f"{asked} > POST /chat/completions of judge model > engine answers" in paths


def test_searches_of_many_name_all_whom_they_are_for(
    platform: tuple[str, str, Seen], exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    build_index([passage(MENTOR)], tmp_path / "other", "bm25")

    async def both(retriever: HttpRetriever) -> None:
        async def one(name: str) -> None:
            with spans.span(name):
                await retriever.search([name], 1)

        await asyncio.gather(one("first"), one("second"))
        await retriever.close()

    with serving(*make_retriever(RetrieverSettings(index=str(tmp_path / "other"), topk=1))) as url:
        asyncio.run(both(HttpRetriever(url)))
    by_name = {span.name: span for span in exporter.get_finished_spans() if span.name in ("first", "second")}
    (together,) = [span for span in exporter.get_finished_spans() if span.name == "search together" and span.links]
    assert together.parent is not None
    assert together.parent.span_id == by_name["first"].context.span_id
    assert [link.context.span_id for link in together.links] == [by_name["second"].context.span_id]


def test_off_a_traceparent_goes_on_and_nothing_else_is_sent(platform: tuple[str, str, Seen]) -> None:
    agent, _, seen = platform
    ask(agent, traceparent=CAME)
    ask(agent)
    ask(agent, traceparent="00-not-one")
    assert seen.traceparents == [CAME, "", ""]


def test_an_error_is_told_by_its_class_alone(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="Brol"), spans.span("search"):
        raise ValueError("Brol Tan")
    (span,) = exporter.get_finished_spans()
    assert (span.status.description, span.events) == ("ValueError", ())


def test_off_nothing_of_opentelemetry_is_imported() -> None:
    code = """
import sys
import rolecast.spans, rolecast.service.tracing, rolecast.rollout.env, rolecast.service.client, rolecast.retriever.client, rolecast.judge.client
rolecast.service.tracing.start("x", {})
with rolecast.spans.span("a", b=1), rolecast.spans.received(""), rolecast.spans.at(rolecast.spans.place()):
    assert rolecast.spans.headers() == {}
sys.exit(bool([name for name in sys.modules if name.startswith("opentelemetry")]))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_switches_it_on_is_one_of_two_words() -> None:
    with pytest.raises(InputError, match="ROLECAST_TRACING=jaeger: there are otlp and off"):
        tracing.start("x", {"ROLECAST_TRACING": "jaeger"})


def test_spans_are_exported_where_the_environment_says() -> None:
    """By a process of its own: what it sends arrives when it ends."""
    received: list[bytes] = []
    app, service = FastAPI(), Service("collector")
    service.status = "ready"

    @app.post("/v1/traces")
    async def take(request: Request) -> dict[str, str]:
        received.append(await request.body())
        return {}

    code = "from rolecast import spans\nfrom rolecast.service import tracing\ntracing.start('rolecast-agent')\nwith spans.span('question'): pass\n"
    with serving(app, service) as url:
        environment = {"ROLECAST_TRACING": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url, "PYTHONPATH": ":".join(sys.path)}
        subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
    told = b"".join(received)
    assert b"rolecast-agent" in told
    assert b"question" in told
