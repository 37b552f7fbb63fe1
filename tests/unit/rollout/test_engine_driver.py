"""How the transformers engine runs by itself: when it steps, when it sleeps, and what its askers are told when it fails."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from rolecast.errors import SamplingError
from rolecast.ports import Aborted, Completion, GenerateRequest, Sampling
from rolecast.rollout.engines import decoder
from rolecast.rollout.engines.decoder import not_finite
from rolecast.rollout.engines.transformers import TransformersEngine
from tests.tiny import RENDERER, tiny_model


def request(text: str = "planner question: Who?", seed: int = 0, max_tokens: int = 5, key: str = "") -> GenerateRequest:
    return GenerateRequest(RENDERER.encode(text), "shared", max_tokens, (), Sampling(), seed, key)


def made(lockstep: bool = False, model: Any = None, max_batch: int = 4) -> TransformersEngine:
    return TransformersEngine({"shared": model or tiny_model(scale=8.0)}, RENDERER, max_batch, 64, "run/0.3", lockstep)


def entered(engine: TransformersEngine, talk: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with engine:
            return await asyncio.wait_for(talk(), 20)

    return asyncio.run(run())


def said(engine: TransformersEngine, asked: GenerateRequest) -> Completion:
    done: Completion = entered(engine, lambda: engine.generate(asked))
    return done


def test_an_engine_that_fails_tells_who_waits_and_who_comes_later() -> None:
    engine = made(max_batch=1)
    error = RuntimeError("no such kernel")

    def fail() -> None:
        raise error

    async def talk() -> list[Any]:
        waiting = [asyncio.create_task(engine.generate(request(seed=s))) for s in range(3)]
        failed = asyncio.create_task(engine.failed())
        await asyncio.sleep(0)
        assert engine.failure is None
        engine._decoders["shared"].decode = fail  # type: ignore[method-assign,assignment]
        told = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(RuntimeError, match="no such kernel"):
            await engine.generate(request())
        return [*told, await failed]

    assert entered(engine, talk) == [error] * 4
    assert engine.failure is error


def test_it_serves_again_after_it_was_left_with_requests_open() -> None:
    engine = made()

    async def leave() -> None:
        asked = asyncio.create_task(engine.generate(request(max_tokens=40)))
        await asyncio.sleep(0.01)
        assert not asked.done()

    entered(engine, leave)
    assert not engine._decoders["shared"].rows
    assert said(engine, request(seed=7)) == said(made(), request(seed=7))


def test_who_has_not_entered_it_is_told() -> None:
    with pytest.raises(RuntimeError, match="enter it first"):
        asyncio.run(made().generate(request()))


def test_an_idle_engine_leaves_the_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made()
    naps = 0
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        nonlocal naps
        naps += 1
        await sleep(seconds)

    async def talk() -> int:
        await engine.generate(request())
        await sleep(0.01)
        before = naps
        await sleep(0.05)
        return naps - before

    monkeypatch.setattr("rolecast.rollout.engines.transformers.asyncio.sleep", counted)
    assert entered(engine, talk) == 0
    assert naps >= 5


def test_a_request_whose_asker_has_gone_takes_no_row() -> None:
    engine = made(max_batch=1)

    async def talk() -> Completion:
        gone = [asyncio.create_task(engine.generate(request(seed=s, max_tokens=50))) for s in range(3)]
        await asyncio.sleep(0.005)
        before = engine.generated
        assert before
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        done = await engine.generate(request(max_tokens=3))
        assert engine.generated - before == 3
        return done

    assert len(entered(engine, talk).ids) == 3


# Lockstep


def batches_of(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Keys of the rows of every prefill."""
    batches: list[list[str]] = []
    admit = decoder.Decoder.admit

    def noting(self: decoder.Decoder) -> int:
        queue = [waiting[0].key for waiting in self.queue]
        admitted = admit(self)
        batches.append(queue[:admitted])
        return admitted

    monkeypatch.setattr(decoder.Decoder, "admit", noting)
    return batches


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 3, 1)])
def test_lockstep_serves_in_the_order_of_keys_once_every_branch_waits(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = made(lockstep=True, max_batch=3)
    batches = batches_of(engine, monkeypatch)

    async def talk() -> None:
        engine.branches = 6
        asked = []
        for number in order:
            asked.append(asyncio.create_task(engine.generate(request(key=f"k{number}"))))
            await asyncio.sleep(0.002)
        assert not batches  # the sixth asks a retriever, and counts
        engine.branches -= 1  # it ends without having asked
        await asyncio.gather(*asked)

    entered(engine, talk)
    assert batches == [["k0", "k1", "k2"], ["k3", "k4"]]


def test_without_lockstep_a_branch_that_is_elsewhere_keeps_nobody() -> None:
    engine = made()
    engine.branches = 2
    assert entered(engine, lambda: engine.generate(request())).ids


# What a model gives


def test_the_model_is_asked_for_once_a_forward_pass() -> None:
    model, asked = tiny_model(scale=8.0), list[int]()
    calls = 0
    forward = model.forward

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return forward(*arguments, **named)

    counted.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    model.forward = counted
    engine = made(model=lambda: (asked.append(1), model)[1])
    before = len(asked)
    done = entered(engine, lambda: engine.generate(request(max_tokens=6)))
    assert len(asked) - before == calls == len(done.ids)


def test_every_end_token_of_the_generation_config_ends_a_turn() -> None:
    model = tiny_model(scale=8.0)
    free = said(made(model=model), request(seed=3, max_tokens=8))
    third = free.ids[2]
    assert third not in free.ids[:2]
    for ends in (third, [RENDERER.tokenizer.eos_token_id, third]):
        model.generation_config.eos_token_id = ends
        ended = said(made(model=model), request(seed=3, max_tokens=8))
        assert (ended.ids, ended.finish) == (free.ids[:3], "stop")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probs_that_are_no_numbers_stop_it_with_slot_and_version(temperature: float) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    engine = made(model=model)
    asked = GenerateRequest(RENDERER.encode("Who?"), "shared", 3, (), Sampling(temperature), 0)
    counts = f"{model.lm_head.weight.numel()} of {sum(p.numel() for p in model.parameters())} weights are not finite"
    with pytest.raises(SamplingError, match=rf"slot 'shared', version run/0\.3: the log-prob of a sampled token is nan: {counts}"):
        entered(engine, lambda: engine.generate(asked))


def test_finite_weights_whose_logits_overflow_are_told_apart() -> None:
    model = tiny_model()
    assert not_finite(model).startswith("all weights are finite")
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("inf")
    assert not_finite(model).startswith("1 of ")


def order_of_ends(lockstep: bool) -> list[str]:
    """Keys in the order in which requests of one length ended that waited for one row; the one that came last is the most urgent."""
    engine, ends = made(lockstep, max_batch=1), list[str]()

    async def ask(key: str, urgency: int) -> None:
        await engine.generate(replace(request(key=key, max_tokens=2), urgency=urgency))
        ends.append(key)

    async def talk() -> None:
        engine.branches = 3
        await asyncio.gather(ask("a", 9), ask("b", 9), ask("c", 2))

    entered(engine, talk)
    return ends


def test_the_most_urgent_request_gets_the_next_row_but_not_in_lockstep() -> None:
    assert order_of_ends(lockstep=False) == ["c", "a", "b"]
    assert order_of_ends(lockstep=True) == ["a", "b", "c"]


def test_a_request_whose_caller_is_cancelled_gives_its_row_back_and_tells_what_it_sampled() -> None:
    engine = made(max_batch=1)

    async def talk() -> tuple[tuple[int, ...], tuple[int, ...]]:
        first = asyncio.create_task(engine.generate(request(max_tokens=40)))
        waiting = asyncio.create_task(engine.generate(request(seed=1, max_tokens=2)))
        while engine.generated < 5:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(Aborted) as end:
            await first
        assert len((await waiting).ids) == 2
        queued = asyncio.create_task(engine.generate(request(max_tokens=40)))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(Aborted) as never:
            await queued
        return end.value.ids, never.value.ids

    whole = said(made(), request(max_tokens=40)).ids
    cut, none = entered(engine, talk)
    assert cut == whole[: len(cut)]
    assert 5 <= len(cut) < 40
    assert none == ()
