"""Tokens drawn from logits, each by inverse transform on a uniform draw of its own."""

from __future__ import annotations

import torch
from torch import Tensor


def sample(logits: Tensor, temperatures: Tensor, top_p: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens, their log-probs under the distribution that was drawn from), both (rows,).

    `logits` is (rows, vocabulary), the others (rows,); temperature 0 is greedy, `draws` are in [0, 1).
    """
    logits = logits.float()
    greedy = temperatures == 0
    logprobs = torch.log_softmax(logits / torch.where(greedy, 1.0, temperatures)[:, None], dim=-1)
    if bool((top_p < 1).any()):
        logprobs = _nucleus(logprobs, top_p)
    cumulative = logprobs.exp().cumsum(-1)
    mass = cumulative[:, -1]
    # A draw close to 1 rounds to 1 in float32: kept below the whole mass, it falls on the last token that has any.
    aim = torch.minimum(draws * mass, torch.nextafter(mass, torch.zeros_like(mass)))
    drawn = torch.searchsorted(cumulative, aim[:, None], right=True).squeeze(-1)
    tokens = torch.where(greedy, logprobs.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


def _nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Keeps the smallest set of tokens with mass ≥ top_p and renormalises: the distribution that is sampled from."""
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    drop = torch.zeros_like(logprobs, dtype=torch.bool).scatter(-1, order, before >= top_p[:, None])
    return torch.log_softmax(logprobs.masked_fill(drop, float("-inf")), dim=-1)
