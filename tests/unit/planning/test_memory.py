"""Memory by parts: numbers worked by hand, and what torch really allocates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rolecast.config import RunConfig
from rolecast.learner.optimizer import SlotOptimizer
from rolecast.learner.settings import OptimizerConfig
from rolecast.planning.memory import batch_parts, engine_parts, kv_bytes, layer_bytes, learner_parts, optimizer_bytes, weights_of
from rolecast.planning.shape import Shape, llama
from rolecast.rollout.engines.static_cache import StaticRows
from rolecast.schedule import find
from rolecast.weights.settings import CHUNK, COMPILED_CHUNK
from tests.tiny import tiny_model

SMALL = llama(2, 8, 2, 1, 4, 16, 32, False, "here")
BILLION = Shape({"weights": (10**9,)}, 16, 2048, 16, 16, 128, 5504, 32000, "here")  # a model of exactly 10^9 parameters


def config_of(**given: Any) -> RunConfig:
    method = given.pop("method", {"name": "decor", "condenser": "extractive"})
    return RunConfig.model_validate({"method": method, **given})


def parts_of(shape: Shape, ranks: int = 1, stage: str = "rl", **given: Any) -> dict[str, int]:
    config = config_of(**given)
    return {part.name: part.bytes for part in learner_parts(config, find(config.schedule, stage), shape, ranks)}


STATES = ("weights, shared", "gradients", "optimizer")


def per_parameter(ranks: int = 1, **given: Any) -> float:
    parts = parts_of(BILLION, ranks, **given)
    return sum(parts[name] for name in STATES) / 1e9


def zero(stage: int) -> dict[str, Any]:
    return {"name": "deepspeed", "zero": stage}


@pytest.mark.parametrize(
    ("stage", "ranks", "bytes"),
    [
        # Rajbhandari et al. 2020, figure 1 and section 3.1: 16 bytes a parameter with Adam in mixed precision, 2 + 2 + 12.
        (1, 1, 16.0),
        (1, 64, 2 + 2 + 12 / 64),
        (2, 64, 2 + (2 + 12) / 64),
        (3, 64, 16 / 64),
        (0, 64, 2 + 4 + 12),  # nothing sharded, gradients added up in float32
    ],
)
def test_zero_shards_as_its_paper_says(stage: int, ranks: int, bytes: float) -> None:
    assert per_parameter(ranks, model={"dtype": "bfloat16"}, learner=zero(stage)) == pytest.approx(bytes)


def test_plain_torch_by_dtype() -> None:
    assert per_parameter() == 16  # float32: weights, gradients, two moments
    assert per_parameter(model={"dtype": "bfloat16"}) == 2 + 4 + 4 + 8  # masters in float32 beside them
    assert per_parameter(8, model={"dtype": "bfloat16"}) == 18  # it shards nothing


def test_offloading_is_to_the_host() -> None:
    config = config_of(model={"dtype": "bfloat16"}, learner={**zero(2), "offload": True})
    parts = {part.name: part.where for part in learner_parts(config, find(config.schedule, "rl"), BILLION, 4)}
    assert {name for name, where in parts.items() if where == "host"} == {"gradients", "optimizer"}


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_keeps_what_the_plan_says(name: str, dtype: torch.dtype) -> None:
    model = tiny_model().to(dtype)
    settings = OptimizerConfig.model_validate({"name": name})
    optimizer = SlotOptimizer(list(model.named_parameters()), settings, 1e-3, 10)
    model(input_ids=torch.arange(5, 15)[None]).logits.float().sum().backward()
    optimizer.step(0)
    kept = sum(
        tensor.numel() * tensor.element_size()
        for part in optimizer.parts for state in part.state.values() for tensor in state.values() if tensor.ndim > 0
    )  # fmt: skip
    parameters = sum(parameter.numel() for parameter in model.parameters())
    matrices = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and ".layers." in n)
    assert kept == optimizer_bytes(settings, parameters, matrices)


def test_adapters_are_trained_over_weights_that_are_there_once() -> None:
    config = config_of(method={"name": "dac"}, model={"dtype": "bfloat16", "lora": {"rank": 4}})
    w = weights_of(config, find(config.schedule, "rl"), SMALL)
    each = 2 * 4 * ((8 + 8) + 2 * (8 + 4) + (8 + 8) + 3 * (8 + 16))
    assert (w.base, w.trained) == (SMALL.parameters, {"generator": each, "searcher": each, "critic": each + 9})
    whole = config_of(method={"name": "dac"})
    assert weights_of(whole, find(whole.schedule, "rl"), SMALL).trained["critic"] == SMALL.parameters + 9


def test_a_reference_is_a_copy_of_whole_weights_and_nothing_over_adapters() -> None:
    anchored = {"name": "search_r1"}  # with a KL term
    stage = find(config_of(method=anchored).schedule, "rl")
    assert weights_of(config_of(method=anchored), stage, SMALL).base == SMALL.parameters
    assert (
        weights_of(config_of(method={**anchored, "kl": 0.0}), find(config_of(method={**anchored, "kl": 0.0}).schedule, "rl"), SMALL).base
        == 0
    )
    assert weights_of(config_of(method=anchored, model={"lora": {}}), stage, SMALL).base == SMALL.parameters


def test_a_layer_by_hand() -> None:
    """Width 8, 2 heads of 4 and 1 of keys, feed-forward 16, float32: norms 2 · (8 · 8 + 4), their results 2 · 8 · 4, queries and result
    2 · 8 · 4, keys and values 2 · 4 · 4, sums 2 · 4, gates 4 · 16 · 4."""
    assert layer_bytes(SMALL, 4) == 136 + 64 + 64 + 32 + 8 + 256
    assert layer_bytes(SMALL, 2) == (136 + 32) + 32 + 32 + 16 + 8 + 128


def test_a_layer_keeps_what_the_plan_says() -> None:
    """Bytes that autograd keeps for the backward pass of a real model, without its weights: what one more layer adds."""
    assert _saved(3) - _saved(2) == pytest.approx(TOKENS * layer_bytes(_shape(1), 4), rel=0.01)


TOKENS = 64


def _shape(layers: int) -> Shape:
    return llama(layers, 64, 4, 2, 16, 160, 50, False, "here")


def _saved(layers: int) -> int:
    from transformers import LlamaConfig, LlamaForCausalLM

    s = _shape(layers)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=s.vocabulary, hidden_size=s.hidden, intermediate_size=s.feed_forward, num_hidden_layers=layers,
            num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.head_dim, tie_word_embeddings=False,
        )
    )  # fmt: skip
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(input_ids=torch.arange(TOKENS)[None] % s.vocabulary, use_cache=False)
        return sum(kept.values()) * bool(output.logits.requires_grad)


def test_a_micro_batch_is_its_tokens_or_one_row_that_is_longer() -> None:
    config = config_of(stages={"rl": {"max_tokens": 100}}, model={"max_context": 64})
    stage = find(config.schedule, "rl")
    found = {part.name: part.bytes for part in batch_parts(config, stage, SMALL)}
    assert found == {"activations": 100 * 2 * layer_bytes(SMALL, 4), "logits": 100 * 32 * 12}
    again = config_of(stages={"rl": {"max_tokens": 100}}, model={"max_context": 64}, learner={"recompute": True})
    kept = 100 * (2 * SMALL.hidden * 4 + layer_bytes(SMALL, 4))  # every layer's input, and one layer
    assert {part.name: part.bytes for part in batch_parts(again, stage, SMALL)}["activations"] == kept
    longer = config_of(stages={"rl": {"max_tokens": 100}}, model={"max_context": 128})
    assert {part.name: part.bytes for part in batch_parts(longer, stage, SMALL)}["logits"] == 128 * 32 * 12


@pytest.mark.parametrize(("compiled", "dtype", "at_once", "each"), [
    (False, "float32", CHUNK, 12), (False, "bfloat16", CHUNK, 12), (True, "float32", COMPILED_CHUNK // 4, 9), (True, "bfloat16", COMPILED_CHUNK // 2, 5),
])  # fmt: skip
def test_logits_of_a_large_vocabulary_are_made_in_chunks(compiled: bool, dtype: str, at_once: int, each: int) -> None:
    config = config_of(stages={"rl": {"max_tokens": 32768, "packing": "rows"}}, learner={"compile": compiled}, model={"dtype": dtype})
    wide = replace(SMALL, vocabulary=152_000)
    [logits] = [part for part in batch_parts(config, find(config.schedule, "rl"), wide) if part.name == "logits"]
    assert logits.bytes == at_once * each < 2**30
    assert logits.unbound == 32768 * 152_000 * each


def test_a_cache_has_what_the_engine_allocates() -> None:
    model = tiny_model()
    c = model.config
    shape = llama(c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim, 64, c.vocab_size, True, "")
    config = config_of(engine={"max_batch": 4}, model={"max_context": 96})
    [cache] = engine_parts(config, find(config.schedule, "rl"), shape, shared=True)
    rows = StaticRows(c, 4, 96, torch.float32, torch.device("cpu"))
    rows.reserve(4, 96, 0)  # when every row has got as long as its context
    assert cache.bytes == rows.bytes
    assert cache.bytes == 4 * 96 * kv_bytes(shape, 4)


def test_an_engine_that_does_not_share_has_weights_of_its_own() -> None:
    config = config_of(method={"name": "dac"}, model={"lora": {"rank": 4}})
    stage = find(config.schedule, "rl")
    found = {part.name: part.bytes for part in engine_parts(config, stage, SMALL, shared=False)}
    assert found["engine: weights"] == SMALL.parameters * 4
    assert found["engine: adapters"] == 2 * weights_of(config, stage, SMALL).trained["searcher"] * 4  # no critic speaks
