"""Logits of chosen positions, by the model's own forward: what a model does after its head (scaling, soft caps) is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def token_logits(model: PreTrainedModel, row: Tensor, column: Tensor, **inputs: Any) -> Tensor:
    """Logits (n, vocabulary) that predict what follows `column[i]` of sequence `row[i]`; no others are computed.

    `inputs` are the model's. Raises RuntimeError if the model does not call its output embedding as a module.
    """
    called = False

    def pick(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal called
        called = True
        hidden, *rest = arguments
        return hidden[row, column][None], *rest

    # On the module and not on its weight, so that what shards or adapts the head (ZeRO-3, LoRA) goes on doing so.
    handle = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        logits: Tensor = model(**inputs).logits
    finally:
        handle.remove()
    if not called:
        raise RuntimeError(f"{type(model).__name__} computes its logits without calling its output embedding")
    return logits[0]


def trunk_states(trunk: Callable[..., Any], row: Tensor, column: Tensor, **inputs: Any) -> tuple[Tensor, type]:
    """Hidden states (n, width) before the head, after `column[i]` of `row[i]`, and the type that the trunk gives its output in."""
    output = trunk(**inputs)
    return output.last_hidden_state[row, column], type(output)


def head_logits(model: PreTrainedModel, hidden: Tensor, output: type) -> Tensor:
    """Logits (n, vocabulary) of hidden states (n, width): the model's own forward, with its trunk already run."""
    trunk = model.base_model
    trunk.forward = lambda *_, **__: output(last_hidden_state=hidden[None])
    try:
        logits: Tensor = model(input_ids=torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device), use_cache=False).logits
    finally:
        del trunk.forward
    return logits[0]
