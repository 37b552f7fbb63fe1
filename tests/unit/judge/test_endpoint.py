"""Requests to a judge model: limits that count its own time alone, and nothing that an endpoint does stretches them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from scripted import TWO_HOPS

from rolecast.judge.endpoint import LONGEST
from rolecast.judge.openai import OpenAIJudge
from rolecast.judge.pace import Pace
from rolecast.ports import Verdict
from rolecast.service.errors import Overloaded
from tests.endpoint import Endpoint, answering, completion, marked

INPUTS: dict[str, Any] = {"question": TWO_HOPS.text, "gold": TWO_HOPS.gold, "prediction": "Kel Dax"}


@pytest.fixture
def server() -> Iterator[tuple[str, Endpoint]]:
    with answering() as server:
        yield server


def judged(judge: OpenAIJudge, count: int = 1) -> list[Verdict]:
    async def all_of() -> list[Verdict]:
        found = await asyncio.gather(*(judge.judge("answer", INPUTS) for _ in range(count)))
        await judge.close()
        return found

    return asyncio.run(all_of())


def trickle(every: float, body: bytes = b"{" + b" " * 1000) -> StreamingResponse:
    async def bytes_of() -> AsyncIterator[bytes]:
        for at in range(len(body)):
            yield body[at : at + 1]
            await asyncio.sleep(every)

    return StreamingResponse(bytes_of(), media_type="application/json")


def test_a_trickling_endpoint_holds_a_try_no_longer_than_its_limit(server: tuple[str, Endpoint]) -> None:
    url, endpoint = server
    endpoint.replies = [lambda body: trickle(0.05), lambda body: trickle(0.05), "Score: 1"]
    begun = time.monotonic()
    assert judged(OpenAIJudge(url, "m", timeout=0.4, patience=5.0)) == [Verdict(1.0, "")]
    assert time.monotonic() - begun < 2
    assert len(endpoint.bodies) == 3


def test_a_request_ends_at_its_patience_whatever_its_tries_took(server: tuple[str, Endpoint]) -> None:
    url, endpoint = server
    endpoint.replies = [lambda body: trickle(0.05)]
    begun = time.monotonic()
    [found] = judged(OpenAIJudge(url, "m", timeout=0.7, patience=1.0))
    assert found.score is None
    assert "no whole reply within" in found.reason
    assert 0.8 < time.monotonic() - begun < 1.4  # a second whole try would end at 1.5


def test_waiting_for_a_turn_costs_no_patience(server: tuple[str, Endpoint]) -> None:
    """Twelve requests of 0.2 s, one after another, each with 0.5 s from its own sending."""
    url, endpoint = server
    endpoint.delay = 0.2
    found = judged(OpenAIJudge(url, "m", concurrency=1, timeout=0.5, patience=0.5), 12)
    assert [verdict.score for verdict in found] == [1.0] * 12


def test_waiting_for_the_rate_costs_no_patience(server: tuple[str, Endpoint]) -> None:
    url, endpoint = server
    endpoint.replies = [500, 500, 500, "Score: 1"]
    found = judged(OpenAIJudge(url, "m", timeout=0.5, patience=0.6, pace=Pace(requests=4.0)), 3)
    assert [verdict.score for verdict in found] == [1.0] * 3
    assert len(endpoint.bodies) == 6


def test_a_service_tells_who_waits_too_long_for_a_turn_to_come_again(server: tuple[str, Endpoint]) -> None:
    url, endpoint = server
    endpoint.delay = 0.5

    async def two() -> list[Any]:
        judge = OpenAIJudge(url, "m", concurrency=1, queue=0.1)
        return await asyncio.gather(*(judge.judge("answer", INPUTS) for _ in range(2)), return_exceptions=True)

    first, second = asyncio.run(two())
    assert first == Verdict(1.0, "")
    assert isinstance(second, Overloaded)


def test_a_reply_that_streams_on_is_none(server: tuple[str, Endpoint]) -> None:
    url, endpoint = server
    endpoint.replies = [lambda body: PlainTextResponse("x" * (LONGEST + 1))]
    [found] = judged(OpenAIJudge(url, "m", patience=0.3))
    assert found.score is None
    assert "more than" in found.reason


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"choices": [{"message": {"content": "Score: 1"}, "finish_reason": "content_filter"}]}, "content filter"),
        ({"choices": [{"message": {"content": "", "refusal": "no"}, "finish_reason": "content_filter"}]}, "content filter"),
        ({"choices": [{"message": {"content": None, "refusal": "I will not"}, "finish_reason": "stop"}]}, "I will not"),
    ],
)
def test_what_is_held_back_is_no_score(server: tuple[str, Endpoint], reply: Any, reason: str) -> None:
    url, endpoint = server

    def with_mark(body: dict[str, Any]) -> dict[str, Any]:
        message = reply["choices"][0]["message"]
        said = message["content"] and marked(message["content"], body)
        return {"choices": [{**reply["choices"][0], "message": {**message, "content": said}}]}

    endpoint.replies = [with_mark]
    [found] = judged(OpenAIJudge(url, "m"))
    assert found.score is None
    assert reason in found.reason
    assert len(endpoint.bodies) == 1


def test_a_refusal_by_a_filter_is_no_score_and_not_tried_again(server: tuple[str, Endpoint]) -> None:
    url, endpoint = server
    endpoint.replies = [lambda body: JSONResponse({"error": {"message": "content_filter: blocked", "code": "content_filter"}}, 400)]
    [found] = judged(OpenAIJudge(url, "m"))
    assert found.score is None
    assert "content_filter" in found.reason
    assert len(endpoint.bodies) == 1


# Log-probs


def told(text: str, tops: list[list[tuple[str, float]]], body: dict[str, Any]) -> dict[str, Any]:
    """A completion of the tokens that begin each list of `tops`, marked as asked for."""
    content = [
        {"token": marked(top[0][0], body), "logprob": top[0][1], "top_logprobs": [{"token": t, "logprob": p} for t, p in top]}
        for top in tops
    ]
    reply = completion("".join(token["token"] for token in content))
    return {"choices": [{**reply["choices"][0], "logprobs": {"content": content}}]}


@pytest.mark.parametrize(
    ("verdict", "score"),
    [
        ([(" YES", -0.1054), (" NO", -2.3026)], 0.9),  # e^-0.1054 = 0.9, e^-2.3026 = 0.1
        ([(" YES", -0.2231), ("YES", -2.3026), (" No", -2.3026)], 0.9),  # 0.8 + 0.1 against 0.1
        ([(" NO", -0.2231), (" YES", -1.6094)], 0.2),
        ([(" YES", -0.2231), (" PARTLY", -1.6094)], 1.0),
        ([(" YES", -1.6094), (" NO", -2.3026)], 1.0),  # 0.3 in all: nothing is known of the rest, the word stands
        ([(" YES", -2.3026), (" NO", -0.1054)], 1.0),  # the word was not the likelier: not greedy, the word stands
    ],
)
def test_the_share_of_yes_is_the_score(server: tuple[str, Endpoint], verdict: list[tuple[str, float]], score: float) -> None:
    url, endpoint = server
    endpoint.replies = [lambda body: told("", [[("Same.\n", -0.1)], [("Score:", -0.1)], verdict], body)]
    [found] = judged(OpenAIJudge(url, "m"))
    assert found.score == pytest.approx(score, abs=1e-3)
    assert found.reason == "Same."
    assert (endpoint.bodies[0]["logprobs"], endpoint.bodies[0]["top_logprobs"]) == (True, 10)


@pytest.mark.parametrize("logprobs", [None, {}, {"content": None}, {"content": [{"token": 1}]}, {"content": [{"token": "x"}]}, [], "x"])
def test_without_log_probs_the_word_is_the_score(server: tuple[str, Endpoint], logprobs: Any) -> None:
    url, endpoint = server
    endpoint.replies = [lambda body: {"choices": [{**completion(marked("Same.\nScore: YES", body))["choices"][0], "logprobs": logprobs}]}]
    assert judged(OpenAIJudge(url, "m")) == [Verdict(1.0, "Same.")]


def test_an_endpoint_that_refuses_log_probs_is_asked_without(server: tuple[str, Endpoint]) -> None:
    url, endpoint = server

    def refusing(body: dict[str, Any]) -> Any:
        if "logprobs" in body:
            return JSONResponse({"error": {"message": "unknown field logprobs"}}, 400)
        return completion(marked("Score: NO", body))

    endpoint.replies = [refusing]
    judge = OpenAIJudge(url, "m")
    assert judged(judge) + judged(judge) == [Verdict(0.0, "")] * 2
    assert ["logprobs" in body for body in endpoint.bodies] == [True, False, False]


# Pace


def test_requests_are_sent_at_the_rate_and_no_faster(server: tuple[str, Endpoint]) -> None:
    url, _ = server
    begun = time.monotonic()
    judged(OpenAIJudge(url, "m", pace=Pace(requests=50)), 50)
    assert 0.97 < time.monotonic() - begun < 1.6


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_tokens_are_paced_and_guesses_put_right() -> None:
    of = Time()
    pace = Pace(tokens=100.0, clock=lambda: of.now, sleep=of.sleep)

    async def turns() -> list[float]:
        waited = [await pace.turn(200), await pace.turn(50)]  # the second waits until 200 are paid off
        pace.correct(50, 350)  # it took more than was guessed
        return [*waited, await pace.turn(10)]

    assert asyncio.run(turns()) == pytest.approx([0.0, 2.0, 3.5])


def test_both_rates_hold() -> None:
    of = Time()
    pace = Pace(requests=2.0, tokens=100.0, clock=lambda: of.now, sleep=of.sleep)

    async def turns() -> list[float]:
        return [await pace.turn(tokens) for tokens in (10, 300, 10, 10)]

    assert asyncio.run(turns()) == pytest.approx([0.0, 0.5, 3.0, 0.5])
