"""The packages `openai` and `langchain-openai` against an agent service that runs on a small model, trained here in seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from rolecast.agent.app import make_agent
from rolecast.agent.core import Agent
from rolecast.agent.settings import AgentSettings
from tests.live import serving
from tests.small_team import ANSWERS, QUESTION, small_team, taught
from tests.tiny import RENDERER, tiny_model

USER = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(*make_agent(AgentSettings(run="r", max_question_characters=500), small_team(taught()))) as url:
        yield url


@pytest.fixture(scope="module")
def untaught() -> Iterator[str]:
    """A team that knows no format."""
    with serving(*make_agent(AgentSettings(run="r"), small_team(tiny_model()))) as url:
        yield url


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


def ask(url: str, **options: Any) -> Any:
    return client(url).chat.completions.create(**{"model": "team", "messages": USER, **options}).choices[0]


def chat(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="team", base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30, **options)  # type: ignore[arg-type]


def test_a_question_is_answered(url: str) -> None:
    reply = client(url).chat.completions.create(model="team", messages=USER)
    [choice] = reply.choices
    assert (choice.message.role, choice.finish_reason, choice.message.refusal) == ("assistant", "stop", None)
    assert choice.message.content in ANSWERS
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_content_may_be_parts_and_all_roles_are_read(url: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": [{"type": "text", "text": "Who is the mentor"}, {"type": "text", "text": "of Brol Tan?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
    ]
    reply = client(url).chat.completions.create(model="team", messages=messages)  # type: ignore[arg-type]
    told = reply.model_extra["rolecast"]  # type: ignore[index]
    assert told["unread"] == [0, 1, 3, 4]
    assert told["trace"]["question"] == "Who is the mentor\nof Brol Tan?"


def test_a_temperature_and_a_seed_are_those_of_the_teams_roles(url: str) -> None:
    said = [ask(url, temperature=1.0, seed=seed).message.content for seed in range(12)]
    assert set(said) >= set(ANSWERS)
    assert [ask(url, temperature=1.0, seed=seed).message.content for seed in range(12)] == said
    assert len({ask(url, temperature=0.0, seed=seed).message.content for seed in range(4)}) == 1
    assert len({ask(url, seed=seed).message.content for seed in range(4)}) == 1  # the team's own is greedy
    nucleus = {ask(url, temperature=2.0, top_p=1e-6, seed=seed).message.content for seed in range(6)}
    assert len(nucleus) == 1


def test_an_answer_is_cut_where_it_is_asked_to_be(url: str) -> None:
    whole = ask(url).message.content
    first, second = whole.split()
    tokens, most = len(RENDERER.encode(first)), len(RENDERER.encode(whole))
    assert tokens < most
    for options in ({"max_tokens": tokens}, {"max_completion_tokens": tokens}, {"max_tokens": most, "max_completion_tokens": tokens}):
        cut = ask(url, **options)
        assert (cut.message.content, cut.finish_reason) == (first, "length")
    assert (ask(url, max_tokens=most).message.content, ask(url, max_tokens=most).finish_reason) == (whole, "stop")
    for stop in (second, [second, "never"], [f" {second}"]):
        cut = ask(url, stop=stop)
        assert (cut.message.content.strip(), cut.finish_reason) == (first, "stop")
    both = ask(url, stop=[f" {second}"], max_tokens=tokens)
    assert (both.message.content, both.finish_reason) == (first, "stop")  # nothing was left to cut


NEUTRAL = {
    "n": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "user": "u", "logprobs": False, "parallel_tool_calls": True,
    "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "logit_bias": {}, "response_format": {"type": "text"},
    "tools": [], "tool_choice": "none", "safety_identifier": "s", "prompt_cache_key": "k", "modalities": ["text"], "seed": None,
    "stop": None, "temperature": None, "max_tokens": None, "verbosity": "medium",
}  # fmt: skip


def test_what_changes_nothing_is_taken(url: str) -> None:
    assert ask(url, **NEUTRAL).message.content == ask(url).message.content
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    assert ask(url, tools=[tool], tool_choice="none").finish_reason == "stop"


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 2), ("presence_penalty", 0.5), ("frequency_penalty", -1), ("logprobs", True), ("logit_bias", {"1": 5}), ("stop", [""]),
        ("tools", [{"type": "function", "function": {"name": "look", "parameters": {}}}]), ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}), ("modalities", ["text", "audio"]), ("reasoning_effort", "high"),
        ("temperature", 3), ("max_tokens", 0), ("top_p", 0), ("seed", 2**64), ("web_search_options", {}), ("verbosity", "high"),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused_by_name(url: str, param: str, value: object) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(url, **{param: value})
    assert str(refused.value.param).split(".")[0] == param
    assert param in refused.value.body["message"]  # type: ignore[index,call-overload]


def test_an_option_that_nobody_knows_is_refused_by_name(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="'top_k' is no option of this server"):
        ask(url, extra_body={"top_k": 5})


def test_pictures_and_second_turns_are_refused_and_not_dropped(url: str) -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]
    with pytest.raises(openai.BadRequestError, match="image_url"):
        ask(url, messages=picture)
    turns = [*USER, {"role": "assistant", "content": "Vrek Stom"}, {"role": "user", "content": "And his?"}]
    with pytest.raises(openai.BadRequestError, match=r"2 messages are of role 'user'.*--rewriter"):
        ask(url, messages=turns)


def test_a_question_is_refused_by_its_length_before_it_is_read(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="has 7000000 characters; send at most 500"):
        ask(url, messages=[{"role": "user", "content": "x" * 7_000_000}])


def test_streaming(url: str) -> None:
    chunks = list(client(url).chat.completions.create(model="team", messages=USER, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said in ANSWERS
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    plain = list(client(url).chat.completions.create(model="team", messages=USER, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in plain)
    with client(url).chat.completions.stream(model="team", messages=USER) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == said


def test_models(url: str) -> None:
    assert [model.id for model in client(url).models.list()] == ["team"]
    one = client(url).models.retrieve("team")
    assert (one.id, one.object, one.model_extra) == ("team", "model", {"name": "team", "ready": True})


def test_errors_are_the_clients_own(url: str) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ask(url, model="gpt-9")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="no model 'org/other'; this server has 'team'"):
        client(url).models.retrieve("org/other")
    with pytest.raises(openai.NotFoundError, match="no POST /v1/completions; this service has POST /v1/chat/completions, "):
        client(url).completions.create(model="team", prompt="x")
    for address in (url, f"{url}/v1/v1"):
        with pytest.raises(openai.NotFoundError, match=r"; this service has POST /v1/chat/completions('|$)"):
            openai.OpenAI(base_url=address, api_key="none").chat.completions.create(model="team", messages=USER)  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError):
        ask(url, messages=[])
    reply = httpx.post(f"{url}/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
    assert (reply.status_code, set(reply.json()["error"])) == (400, {"message", "type", "param", "code"})


def test_without_an_answer_it_says_so(untaught: str) -> None:
    choice = ask(untaught)
    assert (choice.message.content, choice.finish_reason) == (None, "format")
    assert "did not keep to its format" in choice.message.refusal
    chunks = list(client(untaught).chat.completions.create(model="team", messages=USER, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, "format"]
    assert "no answer" in (chunks[0].choices[0].delta.refusal or "")


def test_a_question_that_fills_the_context_ends_as_a_length(untaught: str) -> None:
    choice = ask(untaught, messages=[{"role": "user", "content": "mentor " * 400}])
    assert (choice.message.content, choice.finish_reason) == (None, "length")
    assert "context was full" in choice.message.refusal


def test_langchain_asks_streams_and_reads_why(url: str, untaught: str) -> None:
    reply = chat(url).invoke([SystemMessage("Be brief."), HumanMessage(QUESTION)])
    assert reply.content in ANSWERS
    assert reply.response_metadata["finish_reason"] == "stop"
    assert reply.usage_metadata is not None
    assert reply.usage_metadata["output_tokens"] > 0
    streamed = list(chat(url, stream_usage=True).stream(QUESTION))
    assert "".join(str(chunk.content) for chunk in streamed) == reply.content
    assert any(chunk.usage_metadata for chunk in streamed)
    none = chat(untaught).invoke(QUESTION)
    assert none.response_metadata["finish_reason"] == "format"
    assert "no answer" in none.additional_kwargs["refusal"]
    assert asyncio.run(chat(url).ainvoke(QUESTION)).content == reply.content


def test_langchain_options_are_honoured(url: str) -> None:
    said = [chat(url, temperature=1.0, seed=seed).invoke(QUESTION).content for seed in range(12)]
    assert set(said) >= set(ANSWERS)
    assert [chat(url, temperature=1.0, seed=seed).invoke(QUESTION).content for seed in range(12)] == said
    whole = str(chat(url).invoke(QUESTION).content)
    assert str(chat(url).bind(stop=[whole.split()[1]]).invoke(QUESTION).content).strip() == whole.split()[0]
    cut = chat(url, max_tokens=len(RENDERER.encode(whole.split()[0]))).invoke(QUESTION)
    assert (cut.content, cut.response_metadata["finish_reason"]) == (whole.split()[0], "length")
    blocks = [{"type": "text", "text": QUESTION}]
    assert chat(url, n=1, top_p=1, presence_penalty=0, frequency_penalty=0).invoke([HumanMessage(blocks)]).content == whole  # type: ignore[arg-type]


def test_langchain_hears_what_is_refused(url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="'tools'"):
        chat(url).bind_tools([{"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}]).invoke(QUESTION)
    with pytest.raises(openai.BadRequestError, match="--rewriter"):
        chat(url).invoke([HumanMessage(QUESTION), AIMessage("Vrek Stom"), HumanMessage("And his?")])
    with pytest.raises(openai.NotFoundError, match="this server has 'team'"):
        ChatOpenAI(model="gpt-9", base_url=f"{url}/v1", api_key="none", max_retries=0).invoke(QUESTION)  # type: ignore[arg-type]
    calls = [{"name": "look", "args": {}, "id": "c1"}]
    reply = chat(url).invoke([HumanMessage(QUESTION), AIMessage("", tool_calls=calls), ToolMessage("x", tool_call_id="c1")])
    assert reply.content in ANSWERS


def test_an_error_within_a_stream_is_raised(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: Agent, asked: object) -> None:
        from rolecast.errors import RolecastError

        raise RolecastError("the retriever is away")

    monkeypatch.setattr(Agent, "ask", away)
    with pytest.raises(openai.InternalServerError, match="the retriever is away"):
        ask(url)
    with pytest.raises(openai.APIError, match="the retriever is away"):
        list(client(url).chat.completions.create(model="team", messages=USER, stream=True))
    body = json.loads(httpx.post(f"{url}/v1/chat/completions", json={"messages": USER}).text)
    assert body["error"]["type"] == "server_error"
