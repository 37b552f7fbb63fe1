"""Which models can be sampled from and trained: those whose attention the engine's cache and masks express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from rolecast.errors import InputError

LAYERS = frozenset({"full_attention", "sliding_attention"})
HINT = "use a decoder of the Llama, Mistral, Qwen, Gemma, Granite, Cohere, Phi, OLMo or gpt-oss kind"


def check_supported(model: PreTrainedModel, max_context: int) -> None:
    """Raises InputError, naming the architecture, for what the engine would compute otherwise than the model does."""
    config, name = model.config, type(model).__name__
    if getattr(model, "_is_stateful", False):
        raise InputError(f"{name} is not supported: it keeps another state than keys and values; {HINT}")
    if not isinstance(getattr(config, "num_key_value_heads", None), int):
        raise InputError(f"{name} is not supported: its config names no num_key_value_heads; {HINT}")
    if other := sorted(set(getattr(config, "layer_types", None) or ()) - LAYERS):
        raise InputError(f"{name} is not supported: it has layers of kind {other[0]}; {HINT}")
    if config._attn_implementation not in ("sdpa", "eager"):
        raise InputError(f"{name} with {config._attn_implementation} is not supported; load it with attn_implementation sdpa or eager")
    for kind, limit in _limits(config):
        if max_context > limit:
            raise InputError(
                f"{name}: its {kind} rotary embedding turns a token otherwise once any sequence beside it passes {limit} tokens, so "
                f"sampling and training would differ; set model.max_context to {limit} or less"
            )


def _limits(config: PreTrainedConfig) -> Iterator[tuple[str, int]]:
    """Of rotary embeddings that depend on the longest sequence of a batch: their kind, and up to which length they do not."""
    given: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    for parameters in [given, *(value for value in given.values() if isinstance(value, Mapping))]:
        kind = str(parameters.get("rope_type"))
        if "dynamic" in kind or kind == "longrope":
            original = parameters.get("original_max_position_embeddings") if kind == "longrope" else None
            yield kind, int(original or config.max_position_embeddings)
