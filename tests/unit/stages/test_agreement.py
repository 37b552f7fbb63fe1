"""Which models are taken from outside: the ones for which sampler, learner and model compute one and the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rolecast.config import RunConfig, make_config
from rolecast.devices import device
from rolecast.errors import InputError
from rolecast.rollout.engines import masks
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.stages import agreement
from rolecast.stages.agreement import check_model_agrees
from rolecast.stages.team import first_model
from rolecast.weights.attention import Forest
from tests.architectures import SUPPORTED, WINDOW, build, random_model
from tests.tiny import RENDERER, TOKENIZER

CONTEXT = 64
SMALL = {"vocab_size": len(TOKENIZER), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "opt": ("OPT", {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32}),
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "mamba": ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
    "jamba": (
        "Jamba",
        {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1,
        },
    ),
}  # fmt: skip
STATEFUL = ("mamba", "jamba")


def refusal(model: PreTrainedModel, max_context: int = CONTEXT) -> str:
    with pytest.raises(InputError) as raised:
        check_model_agrees(model, RENDERER, max_context)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_supported_model_agrees(name: str) -> None:
    check_model_agrees(random_model(name), RENDERER, CONTEXT, packed=True)


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite"])
def test_so_it_does_in_bfloat16(name: str) -> None:
    check_model_agrees(random_model(name, torch.bfloat16), RENDERER, CONTEXT)


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_model_is_refused_by_name(name: str) -> None:
    kind, config = REFUSED[name]
    model = build(kind, {**SMALL, **config})
    reason = "it keeps another state than keys and values" if name in STATEFUL else "its config names no num_key_value_heads"
    assert refusal(model).startswith(f"{type(model).__name__} is not supported: {reason}")
    with pytest.raises(InputError, match="is not supported"):
        TransformersEngine({"shared": model}, RENDERER, 2, CONTEXT)


def test_layers_of_another_kind_are_named() -> None:
    model = random_model("qwen3")
    model.config.layer_types = ["full_attention", "chunked_attention"]
    assert "it has layers of kind chunked_attention" in refusal(model)


def test_an_attention_that_takes_no_masks_of_ours_is_named() -> None:
    model = random_model("llama")
    model.config._attn_implementation = "flex_attention"
    assert "load it with attn_implementation sdpa or eager" in refusal(model)


def test_it_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    kind, config = REFUSED["gpt2"]
    build(kind, {**SMALL, **config}).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="GPT2LMHeadModel is not supported"):
        first_model(make_config({"model": {"path": str(tmp_path)}}, "test"), device())


def test_a_rotary_embedding_that_depends_on_the_longest_row_is_refused_beyond_its_limit() -> None:
    assert "set model.max_context to 64 or less" in refusal(random_model("phi3-long"), 65)
    check_model_agrees(random_model("llama", rope_parameters=DYNAMIC), RENDERER, 512)
    assert "dynamic rotary embedding" in refusal(random_model("llama", rope_parameters=DYNAMIC), 513)


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gemma3", "phi3", "gpt-oss"])
def test_masks_that_see_past_the_window_are_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Callable[..., Any] = masks.AttentionMasks._mask
    monkeypatch.setattr(masks.AttentionMasks, "_mask", lambda self, places, span, window, rows: whole(self, places, span, None, rows))
    assert "sampler and model differ by" in refusal(random_model(name))


def test_the_probe_passes_a_window_that_a_context_can_pass_and_is_short_otherwise() -> None:
    model = random_model("mistral", sliding_window=40)
    assert max(map(len, agreement._prompts(model, RENDERER, 512))) > 40
    assert max(map(len, agreement._prompts(model, RENDERER, 40))) < 24
    assert max(map(len, agreement._prompts(random_model("mistral", sliding_window=WINDOW), RENDERER, 18))) == 12


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt-oss"])
def test_packs_whose_rows_see_each_other_are_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(name)
    monkeypatch.setattr(Forest, "sees", lambda forest, window: lambda q, k: k <= q)
    check_model_agrees(model, RENDERER, CONTEXT)
    with pytest.raises(InputError, match="learner with packing and model differ by"):
        check_model_agrees(model, RENDERER, CONTEXT, packed=True)


def test_a_run_that_packs_checks_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_model("llama").save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    monkeypatch.setattr(Forest, "sees", lambda forest, window: lambda q, k: k <= q)
    of = {"model": {"path": str(tmp_path), "max_context": CONTEXT}}
    first_model(make_config(of, "test"), device())
    with pytest.raises(InputError, match="learner with packing"):
        first_model(make_config({**of, "stages": {"rl": {"packing": "prefixes"}}}, "test"), device())


@pytest.mark.parametrize("name", ["gemma2", "granite", "cohere"])
def test_a_learner_that_forgets_what_comes_after_the_head_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(model: PreTrainedModel, row: torch.Tensor, column: torch.Tensor, **inputs: Any) -> torch.Tensor:
        hidden = model.base_model(**inputs).last_hidden_state
        logits: torch.Tensor = model.get_output_embeddings()(hidden[row, column])
        return logits

    monkeypatch.setattr("rolecast.weights.team.token_logits", bare)
    assert "learner and model differ by" in refusal(random_model(name))


def test_what_a_model_s_own_code_raises_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("llama")

    def fails(*arguments: Any, **named: Any) -> Any:
        raise TypeError("an argument\nthat it lacks")

    monkeypatch.setattr(model.model, "forward", fails)
    assert refusal(model) == "LlamaForCausalLM is not supported: TypeError: an argument that it lacks"


def test_a_model_that_gives_no_numbers_is_refused() -> None:
    model = random_model("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("nan"))
    assert "the log-prob of a sampled token is nan" in refusal(model)


@pytest.mark.parametrize("top_p", [0.5, 0.999])
def test_training_samples_from_the_whole_distribution(top_p: float) -> None:
    with pytest.raises(InputError, match=r"rl\.top_p: .*leave top_p at 1"):
        make_config({"stages": {"rl": {"top_p": top_p}}}, "test")
    assert RunConfig().rl("rl").top_p == 1.0
