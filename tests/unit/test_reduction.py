"""Denominators by hand: from inside out, over tokens and over units."""

from __future__ import annotations

import pytest

from rolecast.folds import TOKEN_MEAN, Fold, Reduction, mean, total
from rolecast.reduction import item_weights
from rolecast.types import Unit

# Question g: rollout r1 with two roles (2 and 3 tokens), rollout r2 with one (1 token); question h: rollout s1 with 4 tokens.
UNITS = [
    Unit("r1p", ("a", "b"), 0, "o", "g.p", "c1", group="g", rollout="r1"),
    Unit("r1f", ("c",), 0, "o", "g.f", "c1", group="g", rollout="r1"),
    Unit("r2p", ("d",), 0, "o", "g.p", "c2", group="g", rollout="r2"),
    Unit("s1p", ("e",), 0, "o", "h.p", "c3", group="h", rollout="s1"),
]
LENGTHS = {"a": 1, "b": 1, "c": 3, "d": 1, "e": 4}


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        (TOKEN_MEAN, [1 / 10] * 4),
        ((), [1.0] * 4),
        ((mean("unit"), mean("batch")), [1 / 2 / 4, 1 / 3 / 4, 1 / 4, 1 / 4 / 4]),
        ((mean("rollout"), mean("group"), mean("batch")), [1 / 5 / 2 / 2, 1 / 5 / 2 / 2, 1 / 2 / 2, 1 / 4 / 2]),
        ((total("rollout"), mean("group"), mean("batch")), [1 / 4, 1 / 4, 1 / 4, 1 / 2]),  # CoDA: a sum over tokens
        ((mean("group"), mean("batch")), [1 / 6 / 2] * 3 + [1 / 4 / 2]),
        ((mean("chain"), mean("batch")), [1 / 5 / 3, 1 / 5 / 3, 1 / 3, 1 / 4 / 3]),
        ((mean("baseline"), mean("batch")), [1 / 3 / 3, 1 / 3 / 3, 1 / 3 / 3, 1 / 4 / 3]),  # g.p has three tokens of two rollouts
        ((mean("unit"), total("rollout"), mean("group"), mean("batch")), [1 / 2 / 2 / 2, 1 / 3 / 2 / 2, 1 / 2 / 2, 1 / 4 / 2]),
    ],
)
def test_weights_of_tokens(over: Reduction, expected: list[float]) -> None:
    assert list(item_weights(UNITS, LENGTHS, over).values()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ((mean("batch"),), [1 / 4] * 4),
        (
            (total("rollout"), mean("group"), mean("batch")),
            [1 / 4, 1 / 4, 1 / 4, 1 / 2],
        ),  # DECOR eq. 4: Σ roles, mean of G, mean of questions
        ((mean("rollout"), mean("group"), mean("batch")), [1 / 8, 1 / 8, 1 / 4, 1 / 2]),
        ((mean("baseline"), mean("batch")), [1 / 2 / 3, 1 / 3, 1 / 2 / 3, 1 / 3]),
    ],
)
def test_weights_of_units(over: Reduction, expected: list[float]) -> None:
    assert list(item_weights(UNITS, LENGTHS, over, "unit").values()) == pytest.approx(expected)


@pytest.mark.parametrize("over", [TOKEN_MEAN, (mean("unit"), mean("batch")), (mean("rollout"), mean("group"), mean("batch"))])
def test_means_all_the_way_add_up_to_one(over: Reduction) -> None:
    found = item_weights(UNITS, LENGTHS, over)
    assert sum(found[unit.id] * sum(LENGTHS[action] for action in unit.actions) for unit in UNITS) == pytest.approx(1)


def test_a_level_that_does_not_hold_the_one_before_is_refused() -> None:
    with pytest.raises(ValueError, match="baseline does not hold rollout whole"):
        item_weights(UNITS, LENGTHS, (mean("rollout"), Fold("mean", "baseline")))


def test_units_without_a_chain_are_chains_of_their_own() -> None:
    alone = [Unit("x", ("a",), 0, "o"), Unit("y", ("c",), 0, "o")]
    assert list(item_weights(alone, LENGTHS, (mean("chain"), mean("batch"))).values()) == pytest.approx([1 / 2, 1 / 3 / 2])
