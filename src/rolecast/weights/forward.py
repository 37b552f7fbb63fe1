"""Logits of chosen positions, by the model's own forward: what a model does after its head (scaling, soft caps) is in them.

Log-probs of many positions are computed in chunks, whose logits are made again in the backward pass: with a vocabulary of 150k, all
logits of a micro-batch at once would be most of a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
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


def of_targets(logits: Tensor, index: Tensor | None, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy, float32, (trained,), of tokens `target[i]` that the logits with number `index[i]` predict.

    Without `index` they are as many. Entropy carries no gradient.
    """
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    chosen = logprobs.gather(-1, target[:, None]).squeeze(-1) if index is None else logprobs[index, target]
    with torch.no_grad():
        entropy = -(logprobs.exp().mul_(logprobs)).sum(-1)
    return chosen, entropy if index is None else entropy[index]


def in_chunks(
    logits_of: Callable[[Tensor], Tensor], hidden: Tensor, index: Tensor | None, target: Tensor, temperature: float, chunks: int,
    read: Callable[..., tuple[Tensor, Tensor]] = of_targets,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`of_targets` of the logits of all hidden states, in so many chunks, of which some may be empty. `index` ascends.

    `read`: what computes as `of_targets` does.
    """

    def numbers(part: Tensor, own: Tensor | None, of: Tensor) -> tuple[Tensor, Tensor]:
        return read(logits_of(part), own, of, temperature)

    size = -(-len(hidden) // chunks)
    starts = [min(number * size, len(hidden)) for number in range(chunks)]
    bounds = [*starts, len(hidden)]
    if index is not None:  # where a chunk's trained tokens begin
        bounds = torch.searchsorted(index, torch.tensor(bounds, device=index.device)).tolist()
    parts = []
    for number, start in enumerate(starts):
        of = slice(bounds[number], bounds[number + 1])
        own = None if index is None else index[of] - start
        # ZeRO-3's weights have another shape between the passes, so shapes are not compared.
        done: tuple[Tensor, Tensor] = checkpoint(
            numbers, hidden[start : start + size], own, target[of], use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )
        parts.append(done)
    chosen, entropy = zip(*parts, strict=True)
    return torch.cat(chosen), torch.cat(entropy)
