"""Losses by hand, and what has a gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rolecast.losses import Surrogate, explained_variance, kl_k3, log_ratio, surrogate, truncated_importance, unit_mean, value

PAPER_CLIP = (3e-4, 4e-4)  # DECOR's: 1 - 3e-4 … 1 + 4e-4
LOGPROBS = st.lists(st.floats(-8, 0).map(lambda x: round(x, 2)), min_size=1, max_size=6)


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def leaf(*numbers: float) -> Tensor:
    return tensor(*numbers).requires_grad_()


def ppo(logprob: Tensor, old: Tensor, advantage: Tensor, clip: tuple[float, float], dual_clip: float | None = None) -> Surrogate:
    """One ratio per token."""
    return surrogate(log_ratio(logprob, old), advantage, clip, dual_clip)


def gspo(logprob: Tensor, old: Tensor, advantage: Tensor, unit: Tensor, units: int, clip: tuple[float, float]) -> Surrogate:
    """One ratio per unit."""
    return surrogate(unit_mean(log_ratio(logprob, old), unit, units), advantage, clip)


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(loss.sum(), of)
    return found.tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.1, 1.0, -1.1, -1.1, False),
        (1.5, 1.0, -1.2, 0.0, True),  # already much likelier: no further
        (0.5, 1.0, -0.5, -0.5, False),  # good but unlikelier: pulled back, however far
        (1.5, -1.0, 1.5, 1.5, False),  # bad and likelier: pulled back, however far
        (0.5, -1.0, 0.8, 0.0, True),  # bad and already much unlikelier: no further
        (0.9, -1.0, 0.9, 0.9, False),
        (3.0, 0.0, 0.0, 0.0, False),
    ],
)
def test_ppo(ratio: float, advantage: float, loss: float, slope: float, clipped: bool) -> None:
    logprob = leaf(math.log(ratio) - 1)
    found = ppo(logprob, tensor(-1), tensor(advantage), (0.2, 0.2))
    assert found.loss.item() == pytest.approx(loss, rel=1e-5, abs=1e-7)
    assert gradient(found.loss, logprob) == pytest.approx([slope], rel=1e-5, abs=1e-7)
    assert found.ratio.item() == pytest.approx(ratio, rel=1e-5)
    assert found.clipped.tolist() == [clipped]


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"), [(1.25, 1.0, False), (1.29, 1.0, True), (0.79, -1.0, True), (0.81, -1.0, False), (0.75, 1.0, False)]
)
def test_ppo_clips_apart_below_and_above(ratio: float, advantage: float, clipped: bool) -> None:
    assert ppo(tensor(math.log(ratio)), tensor(0), tensor(advantage), (0.2, 0.28)).clipped.tolist() == [clipped]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (2.9, -1.0, 2.9, 2.9),  # bad and likelier, below the bound: pulled back
        (3.5, -1.0, 3.0, 0.0),  # beyond it: no more than 3 |A|, and no gradient
        (3.5, 1.0, -1.2, 0.0),  # a good one is clipped as ever
        (1.0, 0.5, -0.5, -0.5),  # and no bound lifts a small one
        (0.5, -2.0, 1.6, 0.0),
    ],
)
def test_a_dual_clip_bounds_the_loss_of_what_is_bad(ratio: float, advantage: float, loss: float, slope: float) -> None:
    logprob = leaf(math.log(ratio))
    found = ppo(logprob, tensor(0), tensor(advantage), (0.2, 0.2), dual_clip=3.0)
    assert found.loss.item() == pytest.approx(loss, rel=1e-5)
    assert gradient(found.loss, logprob) == pytest.approx([slope], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_the_slope_is_the_derivative_by_the_log_ratio(advantage: float) -> None:
    change = torch.linspace(-0.5, 1.5, 41).requires_grad_()
    found = surrogate(change, torch.full((41,), advantage), (0.2, 0.28), 3.0)
    assert gradient(found.loss, change) == pytest.approx(found.slope.tolist(), abs=1e-6)


def test_log_ratios_that_are_out_of_all_proportion_stay_finite() -> None:
    far = log_ratio(tensor(0, -1e4), tensor(-1e4, 0))
    assert far.tolist() == [20.0, -20.0]
    assert torch.isfinite(surrogate(far, tensor(-1, -1), (0.2, 0.2)).loss).all()
    assert torch.isfinite(kl_k3(tensor(-1e4), tensor(0))).all()


def test_a_log_ratio_of_what_is_not_finite_is_no_number() -> None:
    """A bound would make e^-20 of a token that the policy holds for impossible, and the update would go on."""
    inf = float("inf")
    assert log_ratio(tensor(-inf, 0, inf, float("nan"), -inf), tensor(0, -inf, 0, 0, -inf)).isnan().all()


def of_two_units(logprob: Tensor, old: Tensor, *advantage: float, clip: tuple[float, float] = (0.2, 0.2)) -> Surrogate:
    """Tokens 0, 2 and 3 are of unit 0, tokens 1 and 4 of unit 1."""
    return gspo(logprob, old, tensor(*advantage), torch.tensor([0, 1, 0, 0, 1]), 2, clip)


def test_gspo_has_one_ratio_per_unit_the_exponential_of_its_mean_log_ratio() -> None:
    old = tensor(-1, -2, -3, -4, -5)
    logprob = leaf(-0.9, -2.2, -2.9, -4.05, -5.1)  # log-ratios .1 .1 -.05 | -.2 -.1, means .05 and -.15
    found = of_two_units(logprob, old, 2.0, -1.0)
    first, second = math.exp(0.05), math.exp(-0.15)
    assert found.ratio.tolist() == pytest.approx([first, second], rel=1e-5)
    assert found.loss.tolist() == pytest.approx([-2 * first, second], rel=1e-5)
    expected = [-2 * first / 3, second / 2, -2 * first / 3, -2 * first / 3, second / 2]
    assert gradient(found.loss, logprob) == pytest.approx(expected, rel=1e-4)


def test_gspo_does_not_clip_single_tokens() -> None:
    logprob = leaf(0.5, 0.0, -0.5, 0.0, 0.0)  # ratios of 1.6 and .6 that cancel out
    found = of_two_units(logprob, torch.zeros(5), 1.0, 1.0)
    assert found.clipped.tolist() == [False, False]
    assert all(slope != 0 for slope in gradient(found.loss, logprob))


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "bound", "clipped"),
    [
        (3.5e-4, 1.0, None, False),
        (4.5e-4, 1.0, 1 + 4e-4, True),
        (-4.5e-4, 1.0, None, False),
        (-2.5e-4, -1.0, None, False),
        (-3.5e-4, -1.0, 1 - 3e-4, True),
        (4.5e-4, -1.0, None, False),
    ],
)
def test_gspo_clips_the_branch_that_goes_too_far(log_ratio: float, advantage: float, bound: float | None, clipped: bool) -> None:
    logprob = leaf(*[log_ratio] * 5)
    found = of_two_units(logprob, torch.zeros(5), advantage, advantage, clip=PAPER_CLIP)
    assert found.clipped.tolist() == [clipped, clipped]
    assert found.loss.tolist() == pytest.approx([-advantage * (bound or math.exp(log_ratio))] * 2, rel=1e-6)
    assert all((slope == 0) is clipped for slope in gradient(found.loss, logprob))


def test_gspo_of_units_of_one_token_is_ppo() -> None:
    logprob, old, advantage = tensor(-0.5, -3, -1), tensor(-1, -1, -1), tensor(1, -2, 0.5)
    one_each = gspo(logprob, old, advantage, torch.arange(3), 3, (0.2, 0.28))
    assert one_each.loss.tolist() == pytest.approx(ppo(logprob, old, advantage, (0.2, 0.28)).loss.tolist())


def test_gspo_repeated_tokens_do_not_move_the_ratio() -> None:
    once = gspo(tensor(0.1, 0.3), torch.zeros(2), tensor(1), torch.zeros(2, dtype=torch.long), 1, (0.9, 0.9))
    thrice = gspo(tensor(*[0.1, 0.3] * 3), torch.zeros(6), tensor(1), torch.zeros(6, dtype=torch.long), 1, (0.9, 0.9))
    assert once.ratio.item() == pytest.approx(thrice.ratio.item())


@pytest.mark.parametrize(("ratio", "weight"), [(0.5, 0.5), (1.0, 1.0), (1.9, 1.9), (2.0, 2.0), (3.0, 2.0), (1e9, 2.0)])
def test_importance_is_truncated_above_only(ratio: float, weight: float) -> None:
    assert truncated_importance(tensor(math.log(ratio)), 2.0).item() == pytest.approx(weight, rel=1e-5)


@pytest.mark.parametrize(("p", "reference", "kl"), [(0.5, 0.25, 0.1931472), (0.25, 0.5, 0.3068528), (0.3, 0.3, 0.0), (1.0, 1.0, 0.0)])
def test_kl_k3(p: float, reference: float, kl: float) -> None:
    assert kl_k3(tensor(math.log(p)), tensor(math.log(reference))).item() == pytest.approx(kl, abs=1e-6)


def test_kl_pulls_towards_the_reference() -> None:
    logprob = leaf(math.log(0.5), math.log(0.25), math.log(0.3))
    slopes = gradient(kl_k3(logprob, tensor(math.log(0.25), math.log(0.5), math.log(0.3))), logprob)
    assert slopes == pytest.approx([0.5, -1.0, 0.0], abs=1e-6)  # 1 - π_ref / π


@given(LOGPROBS, st.integers(0, 5))
def test_kl_is_never_negative_and_zero_at_equality(logprobs: list[float], shift: int) -> None:
    logprob = torch.tensor(logprobs, dtype=torch.float64)
    assert (kl_k3(logprob, logprob.roll(shift)) >= 0).all()
    assert (kl_k3(logprob, logprob) == 0).all()


def test_kl_of_close_policies_is_not_negative_in_float32() -> None:
    reference = torch.linspace(-0.01, 0.01, 2001)
    assert kl_k3(torch.zeros_like(reference), reference).min().item() >= 0


@pytest.mark.parametrize(
    ("predicted", "loss", "slope"),
    [
        (0.3, 1.445, -1.7),  # ½ (0.3 − 2)²
        (1.0, 1.125, 0.0),  # ½ (0.5 − 2)²: moved further than .5 towards the target
        (-1.0, 4.5, -3.0),  # ½ (−1 − 2)²: moved away, which is never forgiven
    ],
)
def test_value(predicted: float, loss: float, slope: float) -> None:
    guess = leaf(predicted)
    found = value(guess, tensor(0), tensor(2), 0.5)
    assert found.item() == pytest.approx(loss)
    assert gradient(found, guess) == pytest.approx([slope], abs=1e-6)


@pytest.mark.parametrize(
    ("predicted", "target", "explained"),
    [
        ((0, 2), (0, 2), 1.0),
        ((5, 7), (0, 2), 1.0),  # a constant error varies with nothing
        ((1, 1), (0, 2), 0.0),
        ((0, 1), (0, 2), 0.75),
        ((2, 0), (0, 2), -3.0),
        ((0, 1), (3, 3), 0.0),
        ((1,), (3,), 0.0),
    ],
)
def test_explained_variance(predicted: tuple[float, ...], target: tuple[float, ...], explained: float) -> None:
    assert explained_variance(tensor(*predicted), tensor(*target)) == pytest.approx(explained)
