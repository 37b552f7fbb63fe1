"""What two engines' kernels explain of a difference between log-probs, and what only other weights do."""

from __future__ import annotations

import math

import pytest
import torch

from rolecast.weights.canary import Canary, differs


@pytest.mark.parametrize(
    ("dtype", "off", "found"),
    [
        (torch.float32, (9e-4, 0.0, 0.0, 0.0), 0.0),
        (torch.float32, (2e-3, 0.0, 0.0, 0.0), 2e-3),
        (torch.bfloat16, (0.51, 0.1, -0.2, 0.1), 0.0),  # one unlikely token of a real model after SFT, in bfloat16
        (torch.bfloat16, (0.95, 0.0, 0.0, 0.0), 0.0),
        (torch.bfloat16, (1.6, 0.0, 0.0, 0.0), 1.6),  # too much for any
        (torch.bfloat16, (0.3, 0.3, -0.3, 0.3), 0.3),  # too much for all of them
    ],
)
def test_one_token_may_differ_more_than_all_of_them(dtype: torch.dtype, off: tuple[float, ...], found: float) -> None:
    one = Canary((1, 2, 3, 4, 5), (-1.0, -2.0, -3.0, -4.0))
    other = Canary(one.ids, tuple(number + by for number, by in zip(one.logprobs, off, strict=True)))
    assert differs(one, other, dtype) == pytest.approx(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_differs(dtype: torch.dtype) -> None:
    assert differs(Canary((1, 2), (-1.0,)), Canary((1, 2), (math.nan,)), dtype)
