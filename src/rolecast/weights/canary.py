"""A canary: log-probs of a fixed prompt. Weights that give other numbers are other weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROBE = "canary question: who answers? The first one, the second one, or no one."
# By dtype what kernels explain, of a log-prob: on average over the prompt, and at most. In bfloat16 a real model's unlikely tokens differ most, and
# more so after training. Of SmolLM2-135M with adapters, vLLM and the trainer differed by up to 0.51 on an H200, bfloat16 and float32 within
# transformers by up to 0.35; by 0.10 on average.
ALLOWED = {torch.float32: (1e-3, 1e-3), torch.bfloat16: (0.25, 1.5)}


@dataclass(frozen=True, slots=True)
class Canary:
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of ids[1:], each given the ones before it


@torch.no_grad()
def canary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Canary:
    ids = tokenizer.encode(PROBE, add_special_tokens=False)
    tokens = torch.tensor([ids], device=model.device)
    logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    chosen = torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None]).squeeze(-1)
    return Canary(tuple(ids), tuple(chosen.tolist()))


def differs(one: Canary, other: Canary, dtype: torch.dtype) -> float:
    """The largest difference of two canaries of the same ids, if it is more than kernels explain; else 0. What is no number differs."""
    off = np.abs(np.array(one.logprobs) - np.array(other.logprobs))
    mean, largest = ALLOWED[dtype]
    return 0.0 if off.mean() <= mean and off.max() <= largest else float(off.max())
