"""Several user turns: made one question by a role of its own, where the service is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Response
from fastapi.responses import JSONResponse
from scripted import TableRetriever
from teams import OneLine

from rolecast.agent.app import make_agent, open_team
from rolecast.agent.core import Agent
from rolecast.agent.rewriter import rewriter
from rolecast.agent.settings import AgentSettings
from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.externals import read_externals
from rolecast.methods.direct import Direct, DirectConfig
from rolecast.ports import Completion, GenerateRequest
from rolecast.rollout.render import Renderer
from rolecast.stages.run import create
from rolecast.stages.serve import open_agent
from rolecast.store.artifact import writing
from rolecast.tags import tagged
from rolecast.weights.settings import ModelConfig
from tests.endpoint import KEY, answering
from tests.live import serving
from tests.tiny import TOKENIZER, tiny_model

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who is the mentor of Brol Tan?"},
    {"role": "assistant", "content": "Vrek Stom"},
    {"role": "user", "content": [{"type": "text", "text": "And who employs him?"}]},
]
REWRITTEN = "Who employs Vrek Stom?"


@dataclass
class Rewriting(OneLine):
    """Says `question` to the rewriter and `line` to the others."""

    question: str = tagged("question", REWRITTEN)
    requests: list[GenerateRequest] = field(default_factory=list)

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        completion = await super().generate(request)
        if request.stop != ("</question>",):
            return completion
        ids = self.renderer.encode(self.question)
        return Completion(ids, (-0.5,) * len(ids), self.renderer.decode(ids), "stop")


@pytest.fixture
def engine(renderer: Renderer) -> Rewriting:
    engine = Rewriting(renderer)
    engine.gate.set()
    return engine


@pytest.fixture
def url(engine: Rewriting) -> Iterator[str]:
    method = Direct(DirectConfig(prompts="compact"))
    agent = Agent("team", method, engine, TableRetriever([]), engine.renderer, 512, rewriter=rewriter("shared"))
    settings = AgentSettings(run="r", rewriter="shared", max_question_characters=300)
    with serving(*make_agent(settings, lambda settings, retriever: agent)) as url:
        yield url


def ask(url: str, messages: list[Any], **more: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json={"messages": messages, **more})


def test_a_conversation_becomes_one_question(url: str, engine: Rewriting) -> None:
    reply = ask(url, TURNS, seed=7, temperature=0.5).json()
    told = reply["rolecast"]
    assert reply["choices"][0]["message"]["content"] == "Kel Dax"
    assert (told["trace"]["question"], told["unread"]) == (REWRITTEN, [])
    assert [thread["role"] for thread in told["trace"]["threads"]] == ["rewriter", "answerer"]
    read = engine.renderer.decode(engine.requests[0].ids)
    for turn in ("system: Be brief.", "user: Who is the mentor of Brol Tan?", "assistant: Vrek Stom", "user: And who employs him?"):
        assert turn in read
    answering = engine.renderer.decode(engine.requests[1].ids)
    assert REWRITTEN in answering
    assert "And who employs him" not in answering
    assert {request.sampling.temperature for request in engine.requests} == {0.5}
    assert len({request.seed for request in engine.requests}) == 2
    seeds = [request.seed for request in engine.requests]
    ask(url, TURNS, seed=7, temperature=0.5)
    assert [request.seed for request in engine.requests[2:]] == seeds


def test_one_turn_stays_as_it_is(url: str, engine: Rewriting) -> None:
    told = ask(url, TURNS[:3]).json()["rolecast"]
    assert (told["trace"]["question"], told["unread"]) == ("Who is the mentor of Brol Tan?", [0, 2])
    assert len(engine.requests) == 1


def test_a_rewriter_that_gives_no_question_ends_as_a_format(url: str, engine: Rewriting) -> None:
    engine.question = "Kel Dax employs him."
    choice = ask(url, TURNS).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("format", None)
    assert len(engine.requests) == 1
    assert ask(url, TURNS[:3]).json()["choices"][0]["message"]["content"] == "Kel Dax"


def test_all_turns_count_as_the_question(url: str, engine: Rewriting) -> None:
    long = [TURNS[1], {"role": "assistant", "content": "x" * 300}, TURNS[3]]
    refused = ask(url, long)
    assert (refused.status_code, engine.requests) == (400, [])
    assert "characters; send at most 300" in refused.json()["error"]["message"]


def test_the_slot_must_be_one_that_the_team_speaks_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(tmp_path / "run", RunConfig(name="tiny", method=DirectConfig(max_tokens=4), model=ModelConfig(max_context=512)))
    with writing(run.model("sft"), "model", {}) as partial:
        tiny_model().save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    with pytest.raises(
        InputError, match=r"tiny has no slot 'external:x' to rewrite with \(--rewriter\); there are shared, and endpoints of --externals"
    ):
        open_agent(run.path, retriever=TableRetriever([]), rewriter="external:x")
    agent = open_agent(run.path, retriever=TableRetriever([]), rewriter="shared")
    assert agent.rewriter is not None
    assert agent.rewriter.slot == "shared"


def quoting(status: int) -> Callable[[dict[str, Any]], Response]:
    return lambda body: JSONResponse({"error": {"message": f"cannot read {body['messages'][-1]['content'][-300:]}"}}, status)


def test_an_endpoint_rewrites_and_the_team_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the settings of the service, with an endpoint that the run knows nothing of. What it says of a fault stays out of the log."""
    run = create(tmp_path / "run", RunConfig(name="tiny", method=DirectConfig(max_tokens=4), model=ModelConfig(max_context=512)))
    with writing(run.model("sft"), "model", {}) as partial:
        tiny_model().save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    monkeypatch.setenv("FAR_KEY", KEY)
    with answering() as (far, endpoint):
        endpoint.replies = [f"<question> {REWRITTEN}</question>"]
        (tmp_path / "externals.yaml").write_text(f"far: {{url: '{far}', model: far-1, key_env: FAR_KEY}}\n")
        settings = AgentSettings(run=str(run.path), rewriter="external:far", externals=str(tmp_path / "externals.yaml"))
        with serving(*make_agent(settings, lambda settings, _: open_team(settings, TableRetriever([])))) as url:
            told = ask(url, TURNS).json()["rolecast"]
            assert (told["trace"]["question"], len(endpoint.bodies)) == (REWRITTEN, 1)
            assert endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
            endpoint.replies = [401]
            refused = ask(url, TURNS)
            assert refused.status_code == 503
            assert KEY not in refused.text
            endpoint.replies = [quoting(500), quoting(400)]
            assert ask(url, TURNS).status_code == 503
            assert len(endpoint.bodies) == 4
    assert "external:far" in caplog.text
    assert [text for text in ("mentor of Brol Tan", "Vrek Stom", "employs him") if text in caplog.text] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("far: {url: 'ftp://x', model: m}", "far.url: give an http"),
        ("far: {url: 'http://x', model: m, keys: 1}", "far.keys: unknown key"),
        ("Far: {url: 'http://x', model: m}", "Far"),
        ("far: {url: 'http://x', model: m, key_env: NO_SUCH_KEY}", "NO_SUCH_KEY holds no key"),
        (None, "externals.yaml"),
    ],
)
def test_a_file_of_endpoints_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "externals.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=reason):
        [endpoint.key(name) for name, endpoint in read_externals(str(file)).items()]
