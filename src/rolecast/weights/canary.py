"""A canary: log-probs of a fixed prompt. Weights that give other numbers are other weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROBE = "canary question: who answers? The first one, the second one, or no one."
TOLERANCE = 1e-3  # of a log-prob in float32
NARROW = 0.1  # in bfloat16, where kernels of two machines differ by up to some 5e-2


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
    off = float(np.abs(np.array(one.logprobs) - np.array(other.logprobs)).max())
    allowed = TOLERANCE if dtype == torch.float32 else NARROW
    return 0.0 if off <= allowed else off
