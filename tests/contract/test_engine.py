"""`Engine` in this process, by transformers and by vLLM, at an endpoint over HTTP, and behind the router that has both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import pytest

from rolecast.errors import RolecastError
from rolecast.externals import ExternalConfig
from rolecast.ports import Completion, Engine, GenerateRequest, Sampling
from rolecast.rollout.engines.external import ExternalEngine, Router
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.types import Slot
from tests.endpoint import answering
from tests.tiny import RENDERER, tiny_model
from tests.vllm_engine import needs_vllm, one_model, over_http

QUESTIONS = ["Who is the mentor of Bak Bam?", "What is the twin of Gron Bak?", "Who?", "memory: a b c d e f g h"]


def spoken(body: dict[str, Any]) -> str:
    """What the endpoint's model says: something of its own to each question, longer than anybody asks for."""
    question = body["messages"][-1]["content"]
    return f" {question} The mentor of {question} is Kel Dax." * 4


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with answering() as (url, endpoint):
        endpoint.replies = [spoken]
        yield url


@dataclass
class Adapter:
    engine: Engine
    slot: Slot


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with one_model(tmp_path_factory.mktemp("model")) as engine:
        yield engine


@pytest.fixture(scope="module")
def vllm_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with over_http(tmp_path_factory.mktemp("served")) as engine:
        yield engine


VLLM = [pytest.param(name, marks=needs_vllm) for name in ("vllm", "vllm_http", "routed to vllm")]


@pytest.fixture(params=["own", "external", "routed to own", "routed to external", *VLLM])
def adapter(request: pytest.FixtureRequest, url: str) -> Adapter:
    if "vllm" in request.param:
        engine = request.getfixturevalue(request.param.removeprefix("routed to "))
        engine.branches = 0
        return Adapter(Router(engine, {}) if request.param.startswith("routed") else engine, "shared")
    own = TransformersEngine({"shared": tiny_model(scale=8.0)}, RENDERER, 8, 128, "v1")
    external = ExternalEngine("far", ExternalConfig(url=url, model="m", patience=0), RENDERER)
    router = Router(own, {"external:far": external})
    slot = "external:far" if request.param.endswith("external") else "shared"
    return Adapter({"own": own, "external": external}.get(request.param, router), slot)


def request(adapter: Adapter, question: str, seed: int = 0, max_tokens: int = 12, stop: Sequence[str] = ()) -> GenerateRequest:
    messages = ({"role": "user", "content": question},)
    ids, _ = RENDERER.prompt(messages)
    return GenerateRequest(ids, adapter.slot, max_tokens, tuple(stop), Sampling(1.0), seed, f"t.{question}", messages)


def asked(adapter: Adapter, requests: Sequence[GenerateRequest]) -> list[Completion]:
    async def run() -> list[Completion]:
        async with adapter.engine as engine:
            engine.branches += len(requests)
            try:
                return await asyncio.gather(*(engine.generate(one) for one in requests))
            finally:
                engine.branches -= len(requests)

    return asyncio.run(run())


def test_text_is_the_decoding_of_ids_of_our_vocabulary(adapter: Adapter) -> None:
    done = asked(adapter, [request(adapter, question, seed) for seed, question in enumerate(QUESTIONS)])
    for completion in done:
        assert completion.text == RENDERER.decode(completion.ids)
        assert completion.ids
        assert 0 <= min(completion.ids) <= max(completion.ids) < len(RENDERER.tokenizer)


def test_log_probs_are_there_for_every_token_or_for_none(adapter: Adapter) -> None:
    [completion] = asked(adapter, [request(adapter, QUESTIONS[0])])
    known = adapter.slot == "shared"
    assert len(completion.logprobs) == (len(completion.ids) if known else 0)
    assert all(isfinite(p) and p <= 1e-6 for p in completion.logprobs)


@pytest.mark.parametrize("max_tokens", [1, 5, 20])
def test_a_reply_has_at_most_as_many_tokens_as_were_asked_for(adapter: Adapter, max_tokens: int) -> None:
    [completion] = asked(adapter, [request(adapter, QUESTIONS[0], max_tokens=max_tokens)])
    assert (len(completion.ids), completion.finish) == (max_tokens, "length")


def test_a_stop_string_ends_the_reply_and_stays_in_it(adapter: Adapter) -> None:
    [free] = asked(adapter, [request(adapter, QUESTIONS[0], max_tokens=20)])
    stop = RENDERER.decode(free.ids[4:6]).strip()
    [completion] = asked(adapter, [request(adapter, QUESTIONS[0], max_tokens=20, stop=[stop, "never said"])])
    assert completion.finish == "stop"
    assert completion.ids == free.ids[: len(completion.ids)]
    assert stop in completion.text
    assert stop not in RENDERER.decode(completion.ids[:-1])


def test_each_of_many_gets_its_own_reply(adapter: Adapter) -> None:
    requests = [request(adapter, question, seed) for seed, question in enumerate(QUESTIONS)] * 3
    together = [completion.ids for completion in asked(adapter, requests)]
    assert together == [asked(adapter, [one])[0].ids for one in requests[:4]] * 3
    assert len(set(together)) == 4


def test_one_caller_that_goes_away_leaves_the_others(adapter: Adapter) -> None:
    async def run() -> Completion:
        async with adapter.engine as engine:
            gone = asyncio.ensure_future(engine.generate(request(adapter, QUESTIONS[1])))
            kept = asyncio.ensure_future(engine.generate(request(adapter, QUESTIONS[0])))
            await asyncio.sleep(0)
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone
            return await kept

    assert asyncio.run(run()).ids == asked(adapter, [request(adapter, QUESTIONS[0])])[0].ids


def test_it_has_a_version_and_counts_branches(adapter: Adapter) -> None:
    assert adapter.engine.version
    assert adapter.engine.branches == 0
    adapter.engine.branches += 2
    assert adapter.engine.branches == 2


@pytest.mark.parametrize("adapter", ["own", "routed to own", *VLLM], indirect=True)
def test_a_slot_that_nobody_speaks_for_is_named(adapter: Adapter) -> None:
    wrong = replace(request(adapter, QUESTIONS[0]), slot="planner")
    with pytest.raises(KeyError, match="planner"):
        asked(adapter, [wrong])


@pytest.mark.parametrize("lockstep", [False, True])
def test_the_router_waits_for_an_endpoint_as_for_a_retriever(url: str, lockstep: bool) -> None:
    """In lockstep the own engine runs when every live branch waits for it: not while one still waits for the endpoint."""
    own = TransformersEngine({"shared": tiny_model(scale=8.0)}, RENDERER, 8, 128, "v1", lockstep)
    router = Router(own, {"external:far": ExternalEngine("far", ExternalConfig(url=url, model="m"), RENDERER)})
    here, far = Adapter(router, "shared"), Adapter(router, "external:far")
    ended: list[str] = []

    async def branch(name: str, *turns: GenerateRequest) -> None:
        try:
            for turn in turns:
                await router.generate(turn)
                ended.append(name)
        finally:
            router.branches -= 1

    async def run() -> None:
        async with router:
            router.branches += 2
            await asyncio.gather(
                branch("a", request(here, QUESTIONS[0])), branch("b", request(far, QUESTIONS[1]), request(here, QUESTIONS[1]))
            )

    asyncio.run(run())
    assert sorted(ended) == ["a", "b", "b"]
    if lockstep:
        assert ended[0] == "b"
    assert router.generated == own.generated == 24


def test_a_router_that_cannot_be_entered_leaves_nothing_running(url: str) -> None:
    class Refusing(ExternalEngine):
        async def __aenter__(self) -> Any:
            raise RolecastError("no")

    own = TransformersEngine({"shared": tiny_model()}, RENDERER, 8, 128)
    router = Router(own, {"external:far": Refusing("far", ExternalConfig(url=url, model="m"), RENDERER)})

    async def enter() -> None:
        async with router:
            raise AssertionError("it was entered")

    with pytest.raises(RolecastError, match="no"):
        asyncio.run(enter())
    assert own._driver is None


def test_the_router_is_the_own_engine_but_for_what_goes_elsewhere(url: str) -> None:
    own = TransformersEngine({"shared": tiny_model()}, RENDERER, 8, 128, "v1")
    router = Router(own, {})
    router.version = "v2"
    assert (own.version, router.version) == ("v2", "v2")

    async def broken() -> tuple[Exception | None, Exception]:
        async with router:
            assert router.failure is None
            own._fail(RolecastError("it failed"))
            return router.failure, await router.failed()

    failure, told = asyncio.run(broken())
    assert str(failure) == str(told) == "it failed"
