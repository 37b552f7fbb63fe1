"""Draws at the edge of the distribution, and what a nucleus leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolecast.rollout.engines.sampling import sample

ONE = torch.ones(1)
CLOSE_TO_ONE = torch.tensor([np.nextafter(1.0, 0.0)], dtype=torch.float64).float()  # a draw below 1, which float32 rounds to 1


def test_a_draw_that_rounds_to_one_takes_no_token_without_mass() -> None:
    assert CLOSE_TO_ONE.item() == 1.0
    logits = torch.full((1, 64), -200.0)
    logits[0, :5] = torch.tensor([0.3, 1.0, -0.5, 0.7, 0.1])
    [token], [logprob] = sample(logits, ONE, ONE, CLOSE_TO_ONE)
    assert token == 4
    assert logprob > -5


@pytest.mark.parametrize("seed", range(4))
def test_that_holds_whatever_the_mass_adds_up_to(seed: int) -> None:
    logits = torch.randn(256, 3000, generator=torch.Generator().manual_seed(seed))
    logits[:, -7:] = -300
    rows = len(logits)
    tokens, logprobs = sample(logits, ONE.expand(rows), ONE.expand(rows), CLOSE_TO_ONE.expand(rows))
    assert int(tokens.max()) < 3000 - 7
    assert bool(logprobs.isfinite().all())


def test_a_draw_outside_the_nucleus_is_never_made() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 0.0]])
    for draw in (0.0, 0.5, 1.0):
        [token], [logprob] = sample(logits, ONE, 0.5 * ONE, draw * ONE)
        assert (token, logprob) == (1, 0.0)
