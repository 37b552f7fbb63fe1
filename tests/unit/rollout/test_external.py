"""An endpoint in the place of a role: what it is asked, how its reply becomes a turn, and what happens when it gives none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import StreamingResponse
from scripted import EMPLOYER, MENTOR, TWO_HOPS, TableRetriever, passage

from rolecast.errors import EngineError, ExternalError, InputError
from rolecast.externals import ExternalConfig
from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.naive_rag import NaiveRag, NaiveRagConfig
from rolecast.methods.search_r1 import SearchR1, SearchR1Config
from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.collect import Collector, Episode
from rolecast.rollout.engines.external import ExternalEngine, Router
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.types import Message, Observation, Role, Stage, Trajectory, external
from rolecast.world.tokenizer import demo_tokenizer
from tests.endpoint import KEY, Endpoint, answering, completion
from tests.tiny import RENDERER, tiny_model

ASKED: tuple[Message, ...] = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?<eos>"})


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Endpoint]]:
    with answering() as server:
        yield server


@pytest.fixture(autouse=True)
def fresh(server: tuple[str, Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    server[1].__init__()  # type: ignore[misc]
    monkeypatch.setenv("FAR_KEY", KEY)


def config(server: tuple[str, Endpoint], **options: Any) -> ExternalConfig:
    return ExternalConfig(**{"url": server[0], "model": "far-1", "key_env": "FAR_KEY", "patience": 0.3, **options})


def engine(server: tuple[str, Endpoint], *replies: Any, renderer: Renderer = RENDERER, **options: Any) -> ExternalEngine:
    server[1].replies = list(replies)
    server[1].delay = options.pop("delay", 0.0)
    return ExternalEngine("far", config(server, **options), renderer)


def request(stop: Sequence[str] = ("</answer>",), max_tokens: int = 40, seed: int = 2**40 + 7) -> GenerateRequest:
    return GenerateRequest((1,), "external:far", max_tokens, tuple(stop), Sampling(0.5, 0.9), seed, "t.0#0", ASKED)


def said(asked: ExternalEngine, *requests: GenerateRequest) -> list[Completion]:
    async def run() -> list[Completion]:
        async with asked:
            return await asyncio.gather(*map(asked.generate, requests))

    return asyncio.run(run())


def refusal(asked: ExternalEngine) -> str:
    with pytest.raises(ExternalError) as caught:
        said(asked, request())
    text = str(caught.value)
    assert text.startswith("external:far")
    assert KEY not in text + str(caught.value.__cause__)
    return text


def test_it_is_asked_in_messages_and_for_text_alone(server: tuple[str, Endpoint]) -> None:
    said(engine(server, "<answer> Kel Dax</answer>"), request())
    [body] = server[1].bodies
    assert body == {
        "model": "far-1", "messages": [dict(message) for message in ASKED], "max_tokens": 40, "temperature": 0.5, "top_p": 0.9, "seed": 7,
    }  # fmt: skip
    assert server[1].headers[0]["authorization"] == f"Bearer {KEY}"


def test_keys_of_the_body_may_be_others(server: tuple[str, Endpoint]) -> None:
    changed = {"max_tokens": None, "max_completion_tokens": 99, "temperature": None, "reasoning_effort": "low"}
    said(engine(server, "x", request=changed), request())
    body = server[1].bodies[0]
    assert not {"max_tokens", "temperature"} & set(body)
    assert (body["max_completion_tokens"], body["reasoning_effort"], body["top_p"]) == (99, "low", 0.9)


@pytest.mark.parametrize(
    ("reply", "text", "finish"),
    [
        ("<answer> Kel Dax</answer>", "<answer> Kel Dax</answer>", "stop"),
        ("<answer> Kel Dax</answer> and so on</answer>", "<answer> Kel Dax</answer>", "stop"),
        (completion("<answer> Kel Dax</answer> and", "length"), "<answer> Kel Dax</answer>", "stop"),
        ("<answer> Kel Dax", "<answer> Kel Dax", "stop"),
        (completion("<answer> Kel", "length"), "<answer> Kel", "length"),
        (completion(None, "length"), "", "length"),
        ("", "", "stop"),
        (" one<eos><|user|> two", " one< eos>< |user|> two", "stop"),
        ("日本 ü\n", "日本 ü\n", "stop"),
    ],
)
def test_a_reply_is_text_in_our_tokens(server: tuple[str, Endpoint], reply: Any, text: str, finish: str) -> None:
    [done] = said(engine(server, reply), request())
    assert (done.text, done.finish, done.logprobs) == (text, finish, ())
    assert done.ids == RENDERER.encode(text)
    assert RENDERER.tokenizer.eos_token_id not in done.ids


def test_a_reply_that_is_longer_in_our_tokens_is_cut(server: tuple[str, Endpoint]) -> None:
    [done] = said(engine(server, "<answer> Kel Dax</answer>"), request(max_tokens=2))
    assert (done.ids, done.finish) == (RENDERER.encode("<answer> Kel Dax</answer>")[:2], "length")
    assert done.text == RENDERER.decode(done.ids)


@pytest.mark.parametrize(
    "reply",
    [
        {}, [], {"choices": []}, {"choices": [{}]}, {"choices": [{"message": None}]}, {"choices": [{"message": {"content": [1]}, "finish_reason": "stop"}]},
        completion("x", "content_filter"), completion("x", "tool_calls"), {"choices": [{"message": {"content": "x"}}]},
    ],
)  # fmt: skip
def test_what_is_no_reply_of_a_role_is_a_fault_and_not_asked_again(server: tuple[str, Endpoint], reply: Any) -> None:
    refusal(engine(server, reply))
    assert len(server[1].bodies) == 1


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_fault_that_passes_is_outlived(server: tuple[str, Endpoint], status: int) -> None:
    [done] = said(engine(server, status, status, "x", patience=10), request())
    assert (done.text, len(server[1].bodies)) == ("x", 3)


@pytest.mark.parametrize("status", [500, 429, 401, 404, 400, 422])
def test_a_fault_that_stays_is_told_without_the_key(server: tuple[str, Endpoint], status: int, caplog: pytest.LogCaptureFixture) -> None:
    text = refusal(engine(server, status))
    assert "[credential]" in text
    assert str(status) in text or status == 422
    assert KEY not in caplog.text


def test_a_reply_that_takes_too_long_is_a_fault(server: tuple[str, Endpoint]) -> None:
    begun = time.monotonic()
    text = refusal(engine(server, "x", delay=5.0, timeout=0.1))
    assert "ReadTimeout" in text or "no reply" in text
    assert time.monotonic() - begun < 4


def test_a_reply_that_trickles_in_is_given_up_too(server: tuple[str, Endpoint]) -> None:
    """Each piece comes in time, so that no single wait is too long."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(60):
            yield b" "
            await asyncio.sleep(0.05)

    begun = time.monotonic()
    text = refusal(engine(server, lambda body: StreamingResponse(pieces()), timeout=0.2))
    assert "gave no reply to t.0#0 within 0.5 s" in text
    assert time.monotonic() - begun < 2


def test_it_serves_one_event_loop_after_the_other(server: tuple[str, Endpoint]) -> None:
    asked = engine(server, "x", delay=0.02, concurrency=1)
    for _ in range(2):
        assert len(said(asked, *[request()] * 3)) == 3


def test_waiting_for_a_turn_costs_no_patience(server: tuple[str, Endpoint]) -> None:
    asked = engine(server, "x", delay=0.1, timeout=0.3, patience=0.0, concurrency=2)
    assert len(said(asked, *[request()] * 12)) == 12  # 0.6 s in all
    assert server[1].most_at_once == 2


def test_an_endpoint_that_is_not_there_names_its_setting() -> None:
    asked = ExternalEngine("far", ExternalConfig(url="http://127.0.0.1:9/v1", model="m", patience=0.1), RENDERER)
    assert "externals.far.url" in refusal(asked)


def test_a_key_file_may_change_between_requests(server: tuple[str, Endpoint], tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("one\n")
    asked = engine(server, "x", key_env=None, key_file=str(file))
    said(asked, request())
    file.write_text("two\n")
    said(asked, request())
    assert [headers["authorization"] for headers in server[1].headers] == ["Bearer one", "Bearer two"]


def test_without_a_key_none_is_sent(server: tuple[str, Endpoint]) -> None:
    said(engine(server, "x", key_env=None), request())
    assert "authorization" not in server[1].headers[0]


def test_a_missing_key_is_said_before_anything_is_asked(server: tuple[str, Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAR_KEY")
    with pytest.raises(InputError, match=r"externals\.far: the environment variable FAR_KEY holds no key"):
        engine(server, "x")


# In episodes


def cast(method: Any, *roles: str) -> Any:
    return method.in_stage(Stage("sft", "sft"), cast=dict.fromkeys(roles, external("far")))


def collected(server: tuple[str, Endpoint], method: Any, *replies: Any, episodes: int = 1, **options: Any) -> list[Trajectory]:
    far = engine(server, *replies, **options)
    router = Router(TransformersEngine({}, RENDERER, 4, 512, "run/0.1"), {external("far"): far})
    retriever = TableRetriever([passage(MENTOR), passage(EMPLOYER)])
    collector = Collector(method, router, retriever, LexicalJudge(), RENDERER, 0, 512, 4)  # type: ignore[arg-type]
    return collector.collect([Episode(TWO_HOPS, "g", member) for member in range(episodes)], Sampling(0.0), "eval")


def test_a_role_that_an_endpoint_speaks_for_is_recorded_in_our_tokens(server: tuple[str, Endpoint]) -> None:
    method = cast(NaiveRag(NaiveRagConfig(prompts="compact")), "answerer")
    [t] = collected(server, method, "<answer> Kel Dax</answer>.")
    [thread] = t.threads
    [action] = thread.actions
    assert (t.answer, t.status, thread.slot) == ("Kel Dax", "ok", "external:far")
    assert (action.ids, action.logprobs, action.version) == (RENDERER.encode("<answer> Kel Dax</answer>"), (), "run/0.1")
    assert server[1].bodies[0]["messages"] == [
        {"role": "user", "content": f"answerer question: {TWO_HOPS.text}\n {MENTOR.sentence}\n {EMPLOYER.sentence}"}
    ]
    assert method.spoken == frozenset()
    assert method.endpoints == {"far"}


def test_a_transcript_is_a_conversation_in_which_observations_are_the_users(server: tuple[str, Endpoint]) -> None:
    method = cast(SearchR1(SearchR1Config(prompts="compact")), "searcher")
    search, answer = f"<think> x</think><search> {MENTOR.query}</search>", "<think> y</think><answer> Kel Dax</answer>"
    [t] = collected(server, method, search, "nonsense", answer)
    assert (t.answer, [action.valid for action in t.actions]) == ("Kel Dax", [True, False, True])
    messages = server[1].bodies[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[1]["content"] == search
    assert messages[2]["content"] == f"\n<information> {MENTOR.sentence}\n {EMPLOYER.sentence}</information>\n"
    assert [turn.text for turn in t.threads[0].turns[1:]] == [message["content"] for message in messages[1:]] + [answer]


def test_what_is_observed_twice_in_a_row_is_one_message(server: tuple[str, Endpoint]) -> None:
    far = engine(server, "x")
    env = Env(
        Router(TransformersEngine({}, RENDERER, 4, 512), {external("far"): far}),
        TableRetriever([]),
        RENDERER,
        Trajectory("t", TWO_HOPS, "g", 0, "m", 0),
        512,
    )  # type: ignore[arg-type]

    async def run() -> None:
        async with env.engine:
            live = env.open(Role("r", frozenset(), (), 9, external("far")), ASKED)
            live.observe(" one")
            live.observe(" two")
            await live.act(lambda text: text)

    asyncio.run(run())
    assert server[1].bodies[0]["messages"] == [ASKED[0], {"role": "user", "content": "Who?<eos> one two"}]


def test_an_endpoint_that_fails_costs_its_episode_alone(server: tuple[str, Endpoint], caplog: pytest.LogCaptureFixture) -> None:
    method = cast(NaiveRag(NaiveRagConfig(prompts="compact")), "answerer")
    done = collected(server, method, "<answer> Kel Dax</answer>", 401, "<answer> Kel Dax</answer>", episodes=3, concurrency=1)
    assert sorted(t.status for t in done) == ["error", "ok", "ok"]
    [fault] = [t.fault for t in done if t.status == "error"]
    assert fault.startswith("ExternalError: external:far")
    assert KEY not in caplog.text + fault


def test_any_other_failure_is_the_engines(server: tuple[str, Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExternalEngine, "_read", lambda self, reply: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        collected(server, cast(NaiveRag(NaiveRagConfig(prompts="compact")), "answerer"), "x")


THINKING = "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}<|assistant|>{{ '<think>\n' }}"


def test_a_tag_that_our_template_leaves_open_is_none_of_the_endpoints(server: tuple[str, Endpoint]) -> None:
    """Our own role's reply begins inside the tag; the endpoint's model has a template of its own."""
    tokenizer = demo_tokenizer()
    tokenizer.chat_template = THINKING
    renderer = Renderer(tokenizer)
    method = SearchR1(SearchR1Config(prompts="compact"))
    far = engine(server, "<think> y</think><answer> Kel Dax</answer>", renderer=renderer)
    router = Router(TransformersEngine({"shared": tiny_model()}, renderer, 4, 512), {external("far"): far})
    for who, text in ((cast(method, "searcher"), "<|assistant|>"), (method, "<|assistant|><think>\n")):
        env = Env(router, TableRetriever([]), renderer, Trajectory("t", TWO_HOPS, "g", 0, "m", 0), 512)  # type: ignore[arg-type]
        live = env.open(who.roles["searcher"], who.messages(who.roles["searcher"], who.state("q")))
        first = live.thread.turns[0]
        assert isinstance(first, Observation)
        assert first.text.endswith(text)
        assert first.ids == renderer.encode(first.text)
        assert live.opening == ("" if who is not method else "<think>\n")

    collector = Collector(cast(method, "searcher"), router, TableRetriever([]), LexicalJudge(), renderer, 0, 512, 4)  # type: ignore[arg-type]
    [t] = collector.collect([Episode(TWO_HOPS, "g", 0)], Sampling(0.0), "eval")
    assert (t.answer, t.actions[0].valid) == ("Kel Dax", True)


def test_nothing_that_is_logged_holds_the_key(server: tuple[str, Endpoint], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        refusal(engine(server, 503))
        said(engine(server, "x"), request())
    assert caplog.records
    assert KEY not in caplog.text
