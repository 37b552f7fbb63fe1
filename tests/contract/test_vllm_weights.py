"""What a real vLLM plays: adapters by slot, weights swapped under it, and what it must not play. One engine for all tests here.

It starts once and is never the same afterwards: each test loads what it needs.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rolecast.errors import EngineError, InputError
from rolecast.ports import Aborted, Completion, GenerateRequest, Sampling
from rolecast.rollout.engines import vllm_api
from rolecast.rollout.engines.vllm import VllmEngine, parameters
from rolecast.types import Slot
from rolecast.weights.canary import canary
from rolecast.weights.placed import Placed
from rolecast.weights.team import FROZEN
from rolecast.weights.versions import CanaryError
from tests.tiny import RENDERER, TOKENIZER
from tests.vllm_engine import CONFIG, CONTEXT, DTYPE, Version, close, llama, needs_vllm, running, saved

pytestmark = needs_vllm
PROMPT = RENDERER.encode("Who is the mentor of Bak Bam? " * 20)  # longer than a block of the prefix cache
SLOTS = ("planner", "answerer", FROZEN)


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    with running(VllmEngine(CONFIG, RENDERER, CONTEXT, DTYPE)) as engine:
        yield engine


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Version]:
    """Over bases that all tests share: version 0.24 starts anew for another base under adapters, which takes a GPU 40 seconds."""
    folder = tmp_path_factory.mktemp("versions")
    return lambda base, seed: Version(folder, base, seed)


def ask(
    engine: VllmEngine, slot: Slot, seed: int = 0, temperature: float = 0.7, stop: tuple[str, ...] = (), max_tokens: int = 8
) -> Completion:
    return asyncio.run(engine.generate(GenerateRequest(PROMPT, slot, max_tokens, stop, Sampling(temperature), seed, f"t.{slot}.{seed}")))


@torch.no_grad()
def recomputed(model: PreTrainedModel, ids: tuple[int, ...], temperature: float = 0.7) -> torch.Tensor:
    everything = torch.tensor([[*PROMPT, *ids]])
    logprobs = torch.log_softmax(model(everything).logits[0].float() / temperature, -1)[:-1]
    return logprobs.gather(-1, everything[0, 1:, None]).squeeze(-1)[-len(ids) :]


def agrees(engine: VllmEngine, of: Version, slot: Slot, seed: int = 0) -> bool:
    """Whether what the engine says of its samples is what the version's own model computes, at the sampling temperature."""
    completion = ask(engine, slot, seed)
    return close(completion.logprobs, recomputed(of.team.model(slot), completion.ids))


@pytest.mark.parametrize("slot", SLOTS)
def test_log_probs_are_those_of_the_slot_s_weights_at_the_sampling_temperature(
    engine: VllmEngine, version: Callable[[int, int], Version], slot: Slot
) -> None:
    first = version(0, 1)
    engine.load(first.placed())
    assert agrees(engine, first, slot)
    assert engine.version == first.name


def test_the_slots_of_one_batch_speak_with_their_own_weights(engine: VllmEngine, version: Callable[[int, int], Version]) -> None:
    first = version(0, 1)
    engine.load(first.placed())

    async def together() -> list[Completion]:
        asked = [GenerateRequest(PROMPT, slot, 8, (), Sampling(0.7), 5, slot) for slot in SLOTS]
        return await asyncio.gather(*map(engine.generate, asked))

    for slot, completion in zip(SLOTS, asyncio.run(together()), strict=True):
        assert close(completion.logprobs, recomputed(first.team.model(slot), completion.ids))


def test_new_adapters_answer_after_a_load_and_those_that_are_too_old_are_gone(
    engine: VllmEngine, version: Callable[[int, int], Version]
) -> None:
    first, second, third = version(0, 1), version(0, 2), version(0, 3)
    engine.load(first.placed())
    own = {engine._speaking[slot].lora_int_id for slot in ("planner", "answerer")}
    ask(engine, "planner")
    shutil.rmtree(first.folder)
    engine.load(second.placed())
    assert all(agrees(engine, second, slot) for slot in SLOTS)
    assert own <= engine._held
    engine.load(third.placed())
    assert all(agrees(engine, third, slot) for slot in SLOTS)
    assert not engine._held & own


def test_an_episode_that_began_with_the_version_before_goes_on_with_its_weights_beside_the_new_ones(
    engine: VllmEngine, version: Callable[[int, int], Version]
) -> None:
    first, second = version(0, 1), version(0, 2)
    engine.load(first.placed())
    engine.load(second.placed())

    async def together() -> list[Completion]:
        asked = [
            GenerateRequest(PROMPT, slot, 8, (), Sampling(0.7), 5, slot, version=one.name) for slot in SLOTS for one in (first, second)
        ]
        return await asyncio.gather(*map(engine.generate, asked))

    of = [(slot, one) for slot in SLOTS for one in (first, second)]
    for (slot, one), completion in zip(of, asyncio.run(together()), strict=True):
        assert completion.version == one.name
        expected = recomputed(one.team.model(slot), completion.ids)
        assert close(completion.logprobs, expected), (slot, one.name)


def test_a_request_that_nobody_waits_for_is_ended_and_tells_what_it_sampled(
    engine: VllmEngine, version: Callable[[int, int], Version]
) -> None:
    engine.load(version(0, 1).placed())
    most = CONTEXT - len(PROMPT) - 2
    asked = GenerateRequest(PROMPT, "planner", most, ("never said",), Sampling(1.0), 3, "t")

    async def cancelled() -> tuple[int, ...]:
        asking = asyncio.ensure_future(engine.generate(asked))
        states = engine._llm.output_processor.request_states
        for _ in range(2000):
            if any(len(state.detokenizer.output_token_ids) > 3 for state in list(states.values())):
                break
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(Aborted) as end:
            await asking
        return end.value.ids

    whole = asyncio.run(engine.generate(asked)).ids
    assert len(whole) > 20, "it ended by itself; take another seed"
    generated = engine.generated
    cut = asyncio.run(cancelled())
    assert 3 < len(cut) < len(whole)
    assert cut == whole[: len(cut)]
    assert engine.generated == generated + len(cut)
    assert not engine._llm.output_processor.has_unfinished_requests()


def test_a_stale_adapter_is_not_played(engine: VllmEngine, version: Callable[[int, int], Version], monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes a number that it knows for weights that it has: a number that is used again plays an older version."""
    first, second = version(0, 11), version(0, 12)  # nothing else here has their weights
    engine.load(first.placed())
    monkeypatch.setattr(engine, "_numbers", itertools.cycle(sorted(engine._held)))
    with pytest.raises(CanaryError, match=f"{second.name}, slot planner"):
        engine.load(second.placed())
    with pytest.raises(EngineError, match="no version whose weights are verified"):
        ask(engine, "planner")


def test_a_dropped_slot_is_not_played(engine: VllmEngine, version: Callable[[int, int], Version]) -> None:
    """A slot whose adapter is lost on the way would be answered by the base."""
    first = version(0, 1)
    with pytest.raises(CanaryError, match="slot answerer"):
        engine.load(first.placed(adapters={"answerer": None}))
    with pytest.raises(EngineError, match="no version whose weights are verified"):
        ask(engine, "planner")


def test_a_slot_without_a_canary_is_not_played(engine: VllmEngine, version: Callable[[int, int], Version]) -> None:
    placed = version(0, 1).placed()
    with pytest.raises(CanaryError, match="no canary of slot planner"):
        engine.load(replace(placed, canaries={slot: numbers for slot, numbers in placed.canaries.items() if slot != "planner"}))


@dataclass
class Forgetful:
    """vLLM's module, but a swap leaves the prefix cache as it is, and maybe nothing says so."""

    counted: bool

    def __getattr__(self, name: str) -> Any:
        return getattr(vllm_api, name)

    async def swap(self, llm: Any, base: Path) -> bool:
        await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(base)})
        return True

    async def answer(self, *arguments: Any) -> Any:
        output = await vllm_api.answer(*arguments)
        if not self.counted:
            output.num_cached_tokens = 0
        return output


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmEngine, Callable[[int], Placed]]]:
    """An engine of one whole model, which a learner trains as a whole."""
    folder = tmp_path_factory.mktemp("whole")

    def whole(seed: int) -> Placed:
        place = saved(llama(seed), folder / f"{seed}.{next(WRITTEN)}")
        return Placed(f"run/0.{seed}", place, place, {"shared": None}, {"shared": canary(llama(seed), TOKENIZER)})

    with running(VllmEngine(CONFIG, RENDERER, CONTEXT, DTYPE)) as engine:
        yield engine, whole


WRITTEN = itertools.count()


def speaks(engine: VllmEngine, seed: int) -> bool:
    completion = ask(engine, "shared", seed)
    return close(completion.logprobs, recomputed(llama(seed), completion.ids))


def test_whole_weights_are_swapped_in_place(alone: tuple[VllmEngine, Callable[[int], Placed]]) -> None:
    """With a prompt that was asked before: its keys and values are of the old weights."""
    engine, whole = alone
    engine.load(whole(0))
    llm = engine._llm
    assert speaks(engine, 0)
    engine.load(whole(1))
    assert speaks(engine, 1)
    assert engine._llm is llm


@pytest.mark.parametrize("counted", [True, False])
def test_stale_keys_and_values_are_not_played(
    alone: tuple[VllmEngine, Callable[[int], Placed]], monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    """By what vLLM says that it read from its cache, and, were that wrong, by the numbers."""
    engine, whole = alone
    engine.load(whole(2))
    ask(engine, "shared")
    monkeypatch.setattr(engine, "_api", Forgetful(counted))
    with pytest.raises(CanaryError, match="slot shared: " + ("the prefix cache" if counted else "log-probs of what it samples")):
        engine.load(whole(3))
    with pytest.raises(EngineError, match="no version whose weights are verified"):
        ask(engine, "shared")


def test_a_prompt_that_was_asked_before_is_read_from_the_cache(engine: VllmEngine, version: Callable[[int, int], Version]) -> None:
    engine.load(version(0, 1).placed())
    asked = parameters(GenerateRequest(PROMPT, "planner", 1, (), Sampling(), 0), frozenset(), True)
    read = [
        asyncio.run(engine._home.run(engine._ask(PROMPT, asked, f"cached{n}", engine._speaking["planner"]))).num_cached_tokens
        for n in range(2)
    ]
    assert read[0] == 0
    assert read[1] >= vllm_api.block_of(engine._llm)


def test_the_end_of_a_turn_is_kept(engine: VllmEngine, version: Callable[[int, int], Version], monkeypatch: pytest.MonkeyPatch) -> None:
    engine.load(version(0, 1).placed())
    free = ask(engine, "planner")
    monkeypatch.setattr(engine, "_ends", frozenset({free.ids[3]}))
    ended = ask(engine, "planner")
    assert ended.ids == free.ids[: free.ids.index(free.ids[3]) + 1]
    assert ended.finish == "stop"
    assert len(ended.logprobs) == len(ended.ids)


def test_no_text_is_made_of_log_probs(engine: VllmEngine, version: Callable[[int, int], Version]) -> None:
    """It would be, of a request with stop strings, token by token."""
    engine.load(version(0, 1).placed())
    asked = parameters(GenerateRequest(PROMPT, "planner", 4, ("never said",), Sampling(), 0), frozenset(), True)
    reply = asyncio.run(engine._home.run(engine._ask(PROMPT, asked, "unspelt", engine._speaking["planner"]))).outputs[0]
    assert len(reply.logprobs) == len(reply.token_ids) == 4
    assert {entry[token].decoded_token for token, entry in zip(reply.token_ids, reply.logprobs, strict=True)} == {None}
    assert reply.text  # in which the stop strings are looked for


def test_more_adapters_than_there_is_room_for_are_refused(
    engine: VllmEngine, version: Callable[[int, int], Version], tmp_path: Path
) -> None:
    engine.load(version(0, 1).placed())
    more = Version(tmp_path, 0, 5, ("planner", "answerer", "filter"))
    with pytest.raises(InputError, match="slots have adapters"):
        engine.load(more.placed())


def test_every_parameter_of_sampling_is_set() -> None:
    """Whatever this version of vLLM has: a default of its own, or the model's, would be taken silently."""
    from vllm import SamplingParams

    fields = {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}
    request = GenerateRequest((1,), "shared", 1, (), Sampling(), 0)
    given = {*vllm_api.FIXED, *vllm_api.generation().sampling, *parameters(request, frozenset(), False), "output_kind"}
    inner = {"output_text_buffer_length", "skip_clone"}
    assert fields - given - inner == set()


def test_the_engine_that_runs_is_one_that_is_known(engine: VllmEngine) -> None:
    assert engine._llm.model_config.logprobs_mode == "processed_logprobs"
    assert engine._llm.model_config.generation_config == "vllm"
    assert engine._llm.vllm_config.cache_config.enable_prefix_caching
    assert TOKENIZER.eos_token_id in engine._ends


def test_a_base_is_swapped_under_adapters(engine: VllmEngine, version: Callable[[int, int], Version]) -> None:
    """With what was asked before: its keys and values are of the old weights."""
    first, other = version(0, 1), version(1, 3)
    engine.load(first.placed())
    llm = engine._llm
    swapped = vllm_api.swaps(llm, under_adapters=True)  # else the engine starts anew
    for slot in SLOTS:
        ask(engine, slot)
    engine.load(other.placed())
    assert (engine._llm is llm) == swapped
    assert all(agrees(engine, other, slot, seed=1) for slot in SLOTS)


def test_a_head_that_is_tied_is_swapped_too(tmp_path: Path) -> None:
    """On CPUs by starting anew: the head would stay as it was."""
    first, other = (Version(tmp_path, base, base, tied=True) for base in (0, 1))
    with running(VllmEngine(CONFIG, RENDERER, CONTEXT, DTYPE)) as engine:
        engine.load(first.placed())
        engine.load(other.placed())
        assert all(agrees(engine, other, slot) for slot in SLOTS)
