"""Log-probs from logits that are there for a moment are those of torch's own log_softmax, and so are their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rolecast.weights.logprobs import PLAIN, Kernels, in_chunks, of_targets

ROWS, WIDTH, VOCABULARY = 11, 6, 37
TARGET = torch.tensor([5, 9, 2, 36, 0, 4, 8, 1, 8, 3, 20])
WEIGHT = torch.randn(ROWS, generator=torch.Generator().manual_seed(5))


def made() -> tuple[Tensor, torch.nn.Linear]:
    torch.manual_seed(3)
    return torch.randn(ROWS, WIDTH, requires_grad=True), torch.nn.Linear(WIDTH, VOCABULARY)


def wanted(hidden: Tensor, head: torch.nn.Linear, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(head(hidden) / temperature, -1)
    return logprobs.gather(-1, TARGET[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunks", [1, 2, 5, 11, 14])
@pytest.mark.parametrize("frozen", [False, True])
def test_chunks_compute_what_log_softmax_does(chunks: int, temperature: float, frozen: bool) -> None:
    found, gradients = [], []
    for chunked in (True, False):
        hidden, head = made()
        head.requires_grad_(not frozen)
        told = (
            in_chunks(head, hidden, TARGET, temperature, chunks, head_trains=not frozen) if chunked else wanted(hidden, head, temperature)
        )
        assert not (chunked and told[1].requires_grad)
        torch.autograd.backward((told[0] * WEIGHT).sum())
        found.append([number.detach() for number in told])
        gradients.append([hidden.grad, *(() if frozen else (head.weight.grad, head.bias.grad))])
    for ours, theirs in (*zip(*found, strict=True), *zip(*gradients, strict=True)):
        assert ours is not None
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_logits_that_are_there_already_are_read_in_the_same_way() -> None:
    hidden, head = made()
    for one, other in zip(of_targets(head(hidden), TARGET, 0.7), wanted(hidden, head, 0.7), strict=True):
        torch.testing.assert_close(one, other)


def counting(calls: dict[str, int]) -> tuple[Kernels, Callable[[Tensor], Tensor], Tensor]:
    hidden, head = made()

    def counted(name: str) -> Callable[..., Any]:
        def run(*given: object) -> object:
            calls[name] += 1
            return getattr(PLAIN, name)(*given)

        return run

    def logits_of(part: Tensor) -> Tensor:
        calls["logits"] += 1
        return head(part)  # type: ignore[no-any-return]

    return Kernels(counted("read"), counted("slope")), logits_of, hidden


@pytest.mark.parametrize(("chunks", "logits"), [(1, 1), (4, 8)])
def test_a_row_s_sum_is_computed_once(chunks: int, logits: int) -> None:
    """Logits that are made again are only for the gradient; in one chunk they are kept."""
    calls = {"read": 0, "slope": 0, "logits": 0}
    kernels, logits_of, hidden = counting(calls)
    chosen, _ = in_chunks(logits_of, hidden, TARGET, 1.0, chunks, kernels)
    assert calls == {"read": chunks, "slope": 0, "logits": chunks}
    torch.autograd.backward(chosen.sum())
    assert calls == {"read": chunks, "slope": chunks, "logits": logits}


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_frozen_head_makes_its_logits_once(chunks: int) -> None:
    calls = {"read": 0, "slope": 0, "logits": 0}
    kernels, logits_of, hidden = counting(calls)
    chosen, _ = in_chunks(logits_of, hidden, TARGET, 1.0, chunks, kernels, head_trains=False)
    torch.autograd.backward(chosen.sum())
    assert calls == {"read": chunks, "slope": chunks, "logits": chunks}


def test_without_gradient_a_frozen_head_has_no_slope() -> None:
    """As in a scoring pass, and where nothing below the head is trained."""
    calls = {"read": 0, "slope": 0, "logits": 0}
    kernels, logits_of, hidden = counting(calls)
    with torch.no_grad():
        in_chunks(logits_of, hidden, TARGET, 1.0, 2, kernels, head_trains=False)
    in_chunks(logits_of, hidden.detach(), TARGET, 1.0, 2, kernels, head_trains=False)
    assert calls == {"read": 4, "slope": 0, "logits": 4}


@pytest.mark.parametrize(("dtype", "largest", "gap", "temperature"), [
    (torch.bfloat16, 12.0, 9.0, 1.0), (torch.float32, 12.0, 9.0, 1.0), (torch.float32, 60.0, 14.0, 1.0), (torch.float32, 30.0, 1.5, 0.1),
])  # fmt: skip
def test_a_token_that_is_all_but_certain_keeps_its_small_gradient(
    dtype: torch.dtype, largest: float, gap: float, temperature: float
) -> None:
    """[v = t] − π(v) is computed before it is rounded, and π(v) of what v is below the largest."""
    row = [largest, largest - gap, largest - gap - 2, largest - gap - 1]
    logits = torch.tensor([row], dtype=dtype, requires_grad=True)
    torch.autograd.backward(of_targets(logits, torch.tensor([0]), temperature)[0].sum())
    exact = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(torch.log_softmax(exact / temperature, -1)[0, 0])
    assert logits.grad is not None
    assert exact.grad is not None
    assert 0 < exact.grad[0, 0] < 2e-4
    # of 1 − π in float32, of whose last bit it is so many times; and the others' to what they are rounded to
    assert abs(logits.grad[0, 0] - exact.grad[0, 0]) <= max(2**-8 * exact.grad[0, 0] * (dtype is torch.bfloat16), 2**-23 / temperature)
    torch.testing.assert_close(logits.grad.double()[0, 1:], exact.grad[0, 1:], rtol=2**-8 if dtype is torch.bfloat16 else 1e-5, atol=0)


def test_large_logits_are_no_infinity() -> None:
    logits = torch.tensor([[3000.0, 2999.0, -3000.0]], requires_grad=True)
    chosen, entropy = of_targets(logits, torch.tensor([1]), 1.0)
    assert chosen.item() == pytest.approx(-1.3132617)
    assert entropy.item() == pytest.approx(0.5822, abs=1e-4)
    torch.autograd.backward(chosen.sum())
    assert torch.isfinite(logits.grad).all()  # type: ignore[arg-type]


def test_nothing_to_read_has_no_gradient() -> None:
    """As a rank has it that runs along without tokens of its own."""
    hidden, head = made()
    chosen, entropy = in_chunks(head, hidden[:0], torch.tensor([], dtype=torch.long), 1.0, 3)
    assert chosen.shape == entropy.shape == (0,)
    torch.autograd.backward(chosen.sum())
    assert hidden.grad is not None
    assert not hidden.grad.any()
