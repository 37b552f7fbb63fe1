"""Random models of many architectures, two layers each, over the demo's tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.tiny import TOKENIZER

WINDOW = 8
_SIZE = {
    "vocab_size": len(TOKENIZER), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": TOKENIZER.eos_token_id,
    "pad_token_id": TOKENIZER.pad_token_id,
}  # fmt: skip
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}

SUPPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-moe": ("Qwen3Moe", {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "gemma2": ("Gemma2", {**_MIXED, "head_dim": 16, "final_logit_softcapping": 0.5, "attn_logit_softcapping": 0.5}),
    "gemma3": ("Gemma3Text", {**_MIXED, "head_dim": 16}),
    "granite": ("Granite", {"logits_scaling": 0.25}),
    "cohere": ("Cohere", {"logit_scale": 4.0}),
    "cohere2": ("Cohere2", {**_MIXED, "logit_scale": 4.0, "head_dim": 8}),
    "phi3": ("Phi3", {"sliding_window": WINDOW}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", _MIXED),
    "exaone4": ("Exaone4", _MIXED),
    "smollm3": ("SmolLM3", {}),
    "gpt-oss": ("GptOss", {**_MIXED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi3-long": ("Phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 64}),
}


def random_model(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> PreTrainedModel:
    kind, more = SUPPORTED[name]
    return build(kind, {**_SIZE, **more, **options}).to(dtype)


def gentle(name: str) -> PreTrainedModel:
    """Gradients of a size that 1e-5 says something of."""
    model = random_model(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.3)
    return model


def build(kind: str, config: dict[str, Any]) -> PreTrainedModel:
    """Of KINDConfig and its causal language model; weights are larger than at initialisation, so that a fault shows."""
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}Config")(**config)
    make: Callable[..., PreTrainedModel] = transformers.AutoModelForCausalLM.from_config
    model = make(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    return model
