"""Clients of a served team: openai, LangChain, KServe's protocols, tokens, callers who leave, the page, MCP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
from langchain_openai import ChatOpenAI

from tests.first_hour.place import Place

Line = tuple[str, Callable[[Place], None]]
QUESTION = "Who is the mentor of nobody at all?"
TOKEN = "a-token-of-thirty-two-characters"


def asked(url: str, **body: Any) -> httpx.Response:
    headers = body.pop("headers", {})
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120, trust_env=False)


def agent(place: Place, *arguments: str, **variables: str) -> Any:
    return place.serving("agent", "serve", place.run_of("first"), *arguments, **variables)


def openai_client(place: Place) -> None:
    with agent(place) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        parts: Any = [{"type": "text", "text": QUESTION}]
        reply = client.chat.completions.create(
            model=client.models.list().data[0].id, n=1, top_p=1, presence_penalty=0, user="me", seed=3, temperature=0.5, max_tokens=40,
            messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],
        )  # fmt: skip
        choice = reply.choices[0]
        assert choice.message.content or choice.message.refusal
        stream = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": QUESTION}], stream=True, stream_options={"include_usage": True}
        )
        assert any(chunk.usage for chunk in stream)


def langchain(place: Place) -> None:
    with agent(place) as url:
        reply = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="tiny").invoke(QUESTION)  # type: ignore[arg-type]
        assert reply.response_metadata["finish_reason"] in ("stop", "length", "format")


def refusals(place: Place) -> None:
    with agent(place) as url:
        one = {"role": "user", "content": QUESTION}
        for body, word in (
            ({"messages": [one, {"role": "assistant", "content": "a"}, one]}, "user"),
            ({"messages": [one], "n": 3}, "n"),
            ({"messages": [one], "logit_bias": {"1": 5}}, "logit_bias"),
            ({"messages": [{"role": "user", "content": "x" * 100_000}]}, "characters"),
        ):
            reply = asked(url, **body)
            assert reply.status_code == 400, reply.text
            error = reply.json()["error"]
            assert {"message", "type", "param", "code"} <= set(error)
            assert word in error["message"], error
        assert "error" in httpx.post(f"{url}/v1/models/none:predict", json={}, trust_env=False).json()
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200


def absences(place: Place) -> None:
    with agent(place) as url:
        for path, word in (
            ("/v1/completions", "POST /v1/chat/completions"),
            ("/v2/models/none", "this server has"),
            ("/nowhere", "GET /traces"),
        ):
            reply = httpx.get(url + path, trust_env=False)
            assert reply.status_code == 404, path
            assert word in reply.text, reply.text
        link = asked(url, messages=[{"role": "user", "content": QUESTION}]).json()["rolecast"]["trace_url"]
    with agent(place) as url:
        reply = httpx.get(url + link, headers={"accept": "text/html"}, trust_env=False)
        assert reply.status_code == 403
        assert "This link does not open" in reply.text


def tokens(place: Place) -> None:
    file = place.folder / "tokens"
    file.write_text(f"{TOKEN}\n")
    with agent(place, "--tokens-file", str(file)) as url:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]}
        assert asked(url, **body).status_code == 401
        assert asked(url, **body, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        file.write_text(f"{TOKEN[::-1]}\n")
        time.sleep(2)
        assert asked(url, **body, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 401
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200


def long_beside_short(place: Place) -> None:
    """What is too long is refused before it holds the team up."""

    async def both(url: str) -> float:
        async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
            long = asyncio.create_task(
                client.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "word " * 1_400_000}]})
            )
            await asyncio.sleep(0.2)
            begun = time.monotonic()
            await client.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": QUESTION}]})
            spent = time.monotonic() - begun
            assert (await long).status_code == 400
            return spent

    with agent(place) as url:
        asked(url, messages=[{"role": "user", "content": QUESTION}])
        assert asyncio.run(both(url)) < 5


def metrics_elsewhere(place: Place) -> None:
    from tests.weed import free_ports

    [port] = free_ports(1)
    with agent(place, "--metrics-port", str(port)) as url:
        assert httpx.get(f"{url}/metrics", trust_env=False).status_code == 404
        assert "rolecast_ready" in httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text


def page(place: Place) -> None:
    with agent(place) as url:
        reply = httpx.get(f"{url}/", trust_env=False)
        assert reply.status_code == 200
        assert "<form" in reply.text
        assert "default-src 'none'" in reply.headers["content-security-policy"]


def many(place: Place) -> None:
    async def all_of_them(url: str) -> list[int]:
        async with httpx.AsyncClient(timeout=240, trust_env=False) as client:
            body = {"messages": [{"role": "user", "content": QUESTION}]}
            return [r.status_code for r in await asyncio.gather(*(client.post(f"{url}/v1/chat/completions", json=body) for _ in range(50)))]

    with agent(place) as url:
        assert asyncio.run(all_of_them(url)) == [200] * 50


LINES: list[Line] = [
    ("openai's client: parts, developer, neutral values, stream with usage", openai_client),
    ("LangChain's ChatOpenAI", langchain),
    ("what cannot be honoured is a 400 that names it, in the route's shape", refusals),
    ("what is not there is named with what is; a dead link says why", absences),
    ("bearer tokens from a file, changed without a restart", tokens),
    ("a question of 7 MB holds nobody up", long_beside_short),
    ("metrics on a port of their own", metrics_elsewhere),
    ("a page to ask on", page),
    ("fifty questions at once", many),
]
