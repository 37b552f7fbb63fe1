"""Rows grow with what is in flight, up to what may be reserved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch
from transformers import LlamaConfig

from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.engines import decoder
from rolecast.rollout.engines.decoder import CPU_CACHE, Decoder
from rolecast.rollout.engines.static_cache import BLOCK, StaticRows
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.scheduler import play
from tests.tiny import RENDERER, tiny_model

SMOL = LlamaConfig(  # SmolLM2-135M's shape
    hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, vocab_size=49152
)
CPU = torch.device("cpu")


def rows_of(config: LlamaConfig = SMOL, rows: int = 128, length: int = 8192, limit: int | None = CPU_CACHE) -> StaticRows:
    return StaticRows(config, rows, length, torch.float32, CPU, limit)


def request(tokens: int, new: int, seed: int = 0) -> GenerateRequest:
    text = RENDERER.encode("planner question: Who is the mentor of Bak Bam? " * tokens)[:tokens]
    return GenerateRequest(text, "shared", new, (), Sampling(1.0), seed, key=f"{seed:03d}")


def sampled(requests: Sequence[GenerateRequest], max_batch: int = 8, lockstep: bool = True) -> tuple[list[Completion], Decoder]:
    engine = TransformersEngine({"shared": tiny_model(scale=8.0)}, RENDERER, max_batch, 512, lockstep=lockstep)
    jobs = [lambda r=r: engine.generate(r) for r in requests]
    return asyncio.run(play(jobs, engine, len(jobs))), engine._decoders["shared"]


def test_nothing_is_reserved_before_there_are_rows() -> None:
    assert rows_of().bytes == 0


def test_the_reserve_of_a_135m_model_stays_under_its_limit_whatever_contexts_come() -> None:
    """At 128 rows of 8,192 tokens, the whole would be 45 GiB."""
    cache = rows_of()
    whole = 2 * 30 * 128 * 3 * 8192 * 64 * 4
    assert whole > 40 * 2**30
    for length in (100, 700, 3000, 8192):
        most = max(rows for rows in range(1, 129) if cache.fits(rows, length))
        reserved = cache._bytes(most, cache._whole(length))
        assert reserved <= CPU_CACHE
        assert most == 128 or cache._bytes(most + 1, cache._whole(length)) > CPU_CACHE  # and no less than could be


def test_one_row_always_fits() -> None:
    assert rows_of(limit=1).fits(1, 8192)
    assert not rows_of(limit=1).fits(2, 1)


def test_growing_keeps_what_live_rows_hold_and_is_in_blocks() -> None:
    config = LlamaConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, vocab_size=9)
    cache = rows_of(config, rows=8, length=1000, limit=None)
    cache.reserve(2, 5, live=0)
    assert cache.shape == (2, BLOCK)
    for number, layer in enumerate((*cache.keys, *cache.values)):
        layer[:, :, :5] = torch.arange(2 * 2 * 5 * 4).view(2, 2, 5, 4) + 1000.0 * number
    before = [layer[:, :, :5].clone() for layer in (*cache.keys, *cache.values)]
    cache.reserve(2, BLOCK + 1, live=2)
    cache.reserve(5, BLOCK + 1, live=2)
    assert cache.shape == (5, 2 * BLOCK)
    for old, layer in zip(before, (*cache.keys, *cache.values), strict=True):
        assert torch.equal(layer[:2, :, :5], old)
        assert not layer[2:].any()
        assert not layer[:, :, 5:].any()
    cache.reserve(5, 990, live=5)
    assert cache.shape == (5, 1000)  # a context's limit is not rounded up


def test_rows_that_do_not_fit_together_give_up_room_that_others_left() -> None:
    config = LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, vocab_size=9)
    cache = rows_of(config, rows=64, length=4096, limit=2 * 16 * BLOCK * 8 * 4)  # sixteen rows of a block
    cache.reserve(16, BLOCK, live=0)
    cache.reserve(2, 8 * BLOCK, live=2)
    assert cache.shape == (2, 8 * BLOCK)


def test_requests_beyond_the_reserve_wait_and_sample_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [request(10 + 37 * number % 200, 20, number) for number in range(12)]
    free, _ = sampled(requests)
    monkeypatch.setattr(decoder, "CPU_CACHE", 3 * 2 * 2 * 4 * 256 * 8 * 4)  # about three rows of 256 tokens
    widest = 0
    reserve = StaticRows.reserve

    def noting(self: StaticRows, rows: int, length: int, live: int) -> None:
        nonlocal widest
        reserve(self, rows, length, live)
        widest = max(widest, self.bytes)

    monkeypatch.setattr(StaticRows, "reserve", noting)
    tight, own = sampled(requests)
    assert [c.ids for c in tight] == [c.ids for c in free]
    assert 0 < widest <= decoder.CPU_CACHE
    assert not own.queue


def test_slots_share_what_may_be_reserved() -> None:
    models = {slot: tiny_model() for slot in ("planner", "filter", "answerer")}
    engine = TransformersEngine(models, RENDERER, 8, 128)
    assert sum(own._cache._limit or 0 for own in engine._decoders.values()) <= CPU_CACHE


def test_a_prefill_is_cut_where_memory_ends_and_samples_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [request(10 + 31 * number % 120, 6, number) for number in range(8)]
    free, _ = sampled(requests)
    sizes: list[int] = []
    prefill = Decoder._prefill

    def noting(self: Decoder, rows: list[object]) -> None:
        sizes.append(len(rows))
        prefill(self, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "_prefill", noting)
    monkeypatch.setattr(decoder, "CPU_PREFILL", 400_000)
    cut, _ = sampled(requests)
    assert [c.ids for c in cut] == [c.ids for c in free]
    assert len(sizes) > 1
    assert sum(sizes) == len(requests)
