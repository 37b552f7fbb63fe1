"""Advantages by hand: groups (DECOR eq. 6, GRPO) and GAE along chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.credit import Floats, advantages, gae, group_advantages, whiten
from rolecast.types import Objective, Unit

GROUP = Objective("decor", "shared", 1e-6, "group")
GAE = Objective("ppo", "shared", 1e-6, "gae")
REWARDS = st.floats(-5, 5, allow_nan=False).map(lambda x: round(x, 3))


def unit(id: str, reward: float, baseline: str = "q", actions: Sequence[str] = (), chain: str = "", order: int = 0) -> Unit:
    return Unit(id, tuple(actions) or (f"{id}/a",), reward, "o", baseline, chain, order)


def floats(*numbers: float) -> Floats:
    return np.array(numbers, dtype=np.float64)


def group(*rewards: float, baseline: str = "q") -> list[Unit]:
    return [unit(f"{baseline}{i}", reward, baseline) for i, reward in enumerate(rewards)]


def test_group_is_reward_minus_mean_over_deviation() -> None:
    # mean .2, deviations 0 .4 .8 -1.2, variance (0 + .16 + .64 + 1.44) / 4 = .56
    found = group_advantages(group(0.2, 0.6, 1.0, -1.0), 0.0)
    assert list(found.values()) == pytest.approx([0, 0.5345225, 1.0690450, -1.6035675])


def test_epsilon_is_added_to_the_deviation() -> None:
    assert list(group_advantages(group(1.0, 0.0), 0.5).values()) == pytest.approx([0.5, -0.5])


def test_each_question_and_role_has_its_own_statistics() -> None:
    units = [*group(1.0, 0.0, baseline="q:planner"), *group(-1.0, -0.5, baseline="q:filter"), *group(7.0, 9.0, baseline="r:planner")]
    assert list(group_advantages(units, 0.0).values()) == pytest.approx([1, -1, -1, 1, -1, 1])


def test_units_of_groups_may_come_in_any_order() -> None:
    first, second = group(1.0, 0.0, 0.0), group(5.0, 5.0, 8.0, baseline="r")
    mixed = [first[0], second[2], first[1], second[0], second[1], first[2]]
    assert group_advantages(mixed, 1e-6) == pytest.approx(group_advantages([*first, *second], 1e-6))


def test_a_role_that_did_not_act_is_no_part_of_the_statistics() -> None:
    # The third rollout ended with the planner's fault: -1 counts for the planner and is not known to the filter.
    planner = [unit(f"p{i}", reward, "q:planner") for i, reward in enumerate((1.0, 1.0, -1.0))]
    filter_ = [unit(f"f{i}", reward, "q:filter") for i, reward in enumerate((1.0, 0.0))]
    found = group_advantages([*planner, *filter_], 0.0)
    assert [found[key] for key in ("p0", "p1", "p2")] == pytest.approx([0.7071068, 0.7071068, -1.4142136])
    assert [found[key] for key in ("f0", "f1")] == pytest.approx([1, -1])


@pytest.mark.parametrize("rewards", [(0.7, 0.7, 0.7), (0.1 + 0.2, 0.3), (-1.0,), (1e6,)])
def test_without_variance_there_is_no_advantage(rewards: tuple[float, ...]) -> None:
    assert list(group_advantages(group(*rewards), 1e-6).values()) == [0.0] * len(rewards)


def test_a_small_variance_still_counts() -> None:
    assert list(group_advantages(group(1.0, 1.0 + 1e-6), 0.0).values()) == pytest.approx([-1, 1], rel=1e-4)


@given(st.lists(st.tuples(st.sampled_from("abc"), REWARDS), min_size=1, max_size=20))
def test_advantages_of_each_group_sum_to_zero(rows: list[tuple[str, float]]) -> None:
    units = [unit(str(i), reward, baseline) for i, (baseline, reward) in enumerate(rows)]
    found = group_advantages(units, 1e-6)
    for key in {u.baseline for u in units}:
        assert sum(found[u.id] for u in units if u.baseline == key) == pytest.approx(0, abs=1e-6)


@given(st.lists(REWARDS, min_size=2, max_size=8), st.floats(-3, 3), st.floats(0.5, 4))
def test_advantages_ignore_where_rewards_start_and_how_they_are_scaled(rewards: list[float], shift: float, scale: float) -> None:
    moved = [scale * reward + shift for reward in rewards]
    if np.std(rewards) > 1e-3 or np.std(rewards) == 0:
        expected = list(group_advantages(group(*rewards), 0.0).values())
        assert list(group_advantages(group(*moved), 0.0).values()) == pytest.approx(expected, abs=1e-5)


def test_every_token_of_a_unit_gets_its_advantage() -> None:
    units = [unit("u", 1.0, actions=["a", "b"]), unit("v", 0.0, actions=["c"])]
    found = advantages(units, replace(GROUP, eps=0.0), {"a": 3, "b": 1, "c": 2, "unused": 9})
    assert {key: array.tolist() for key, array in found.items()} == {"a": [1, 1, 1], "b": [1], "c": [-1, -1]}


def test_without_an_estimator_the_reward_is_the_advantage() -> None:
    found = advantages([unit("u", 0.25, actions=["a"])], replace(GROUP, estimator="none"), {"a": 2})
    assert found["a"].tolist() == [0.25, 0.25]


def test_gae_without_a_critic_is_an_error_that_names_the_objective() -> None:
    with pytest.raises(ValueError, match="ppo"):
        advantages([unit("u", 1.0)], GAE, {"u/a": 1})


CHAIN = [unit("first", 1.0, actions=["a", "b"], chain="c", order=0), unit("second", 2.0, actions=["c"], chain="c", order=1)]
LENGTHS = {"a": 2, "b": 1, "c": 2}
VALUES = {"a": floats(0.5, 0.1), "b": floats(0.2), "c": floats(0.3, 0.4)}


def test_gae_at_gamma_and_lambda_one() -> None:
    # rewards along the chain: 0 0 1 | 0 2, still to come: 3 3 3 2 2
    found = gae(CHAIN, GAE, LENGTHS, VALUES)
    assert [found[key][1].tolist() for key in "abc"] == [pytest.approx([3, 3]), pytest.approx([3]), pytest.approx([2, 2])]
    assert [found[key][0].tolist() for key in "abc"] == [pytest.approx([2.5, 2.9]), pytest.approx([2.8]), pytest.approx([1.7, 1.6])]


def test_gae_at_gamma_nine_and_lambda_eight_tenths() -> None:
    # deltas -.41 .08 1.07 .06 1.6; each is added .72 of what follows
    found = gae(CHAIN, replace(GAE, gamma=0.9, lam=0.8), LENGTHS, VALUES)
    flat = np.concatenate([found[key][0] for key in "abc"])
    assert flat == pytest.approx([0.654664576, 1.4787008, 1.94264, 1.212, 1.6])
    returns = np.concatenate([found[key][1] for key in "abc"])
    assert returns == pytest.approx([1.154664576, 1.5787008, 2.14264, 1.512, 2.0])


def test_penalties_are_taken_from_each_token() -> None:
    penalties = {"a": floats(0, 0), "b": floats(0.5), "c": floats(0.1, 0.2)}  # rewards 0 0 .5 -.1 1.8
    found = gae(CHAIN, GAE, LENGTHS, VALUES, penalties)
    assert np.concatenate([found[key][1] for key in "abc"]) == pytest.approx([2.2, 2.2, 2.2, 1.7, 1.8])


def test_penalties_reach_the_advantages() -> None:
    found = advantages(CHAIN, GAE, LENGTHS, VALUES, {key: np.full(n, 1.0) for key, n in LENGTHS.items()})
    assert found["c"] == pytest.approx([2 - 2 - 0.3, 2 - 1 - 0.4])


def test_the_inputs_are_left_as_they_were() -> None:
    penalties = {key: np.full(n, 1.0) for key, n in LENGTHS.items()}
    gae(CHAIN, GAE, LENGTHS, VALUES, penalties)
    assert all(array.tolist() == [1.0] * len(array) for array in penalties.values())
    assert VALUES["a"].tolist() == [0.5, 0.1]


def test_units_of_a_chain_follow_their_order_not_their_place() -> None:
    expected, found = gae(CHAIN, GAE, LENGTHS, VALUES), gae(CHAIN[::-1], GAE, LENGTHS, VALUES)
    for key in "abc":
        assert found[key][0] == pytest.approx(expected[key][0])


def test_chains_do_not_mix() -> None:
    other = unit("other", 10.0, actions=["d"], chain="d")
    lengths, values = {**LENGTHS, "d": 1}, {**VALUES, "d": floats(0.7)}
    alone, beside = gae(CHAIN, GAE, LENGTHS, VALUES), gae([CHAIN[0], other, CHAIN[1]], GAE, lengths, values)
    for key in "abc":
        assert beside[key][0] == pytest.approx(alone[key][0])
    assert beside["d"][0] == pytest.approx([9.3])


def test_units_without_a_chain_stand_alone() -> None:
    units = [unit("u", 1.0, actions=["a"]), unit("v", 5.0, actions=["b"])]
    found = gae(units, GAE, {"a": 1, "b": 1}, {"a": floats(0), "b": floats(0)})
    assert (found["a"][0].tolist(), found["b"][0].tolist()) == ([1], [5])


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[Unit], dict[str, int], dict[str, Floats]]:
    """One chain of units, each with at least one action of at least one token."""
    units: list[Unit] = []
    lengths: dict[str, int] = {}
    for order in range(draw(st.integers(1, 4))):
        actions = [f"{order}.{i}" for i in range(draw(st.integers(1, 3)))]
        lengths |= {action: draw(st.integers(1, 4)) for action in actions}
        units.append(unit(str(order), draw(REWARDS), actions=actions, chain="c", order=order))
    return units, lengths, {action: floats(*(draw(REWARDS) for _ in range(n))) for action, n in lengths.items()}


@given(chains())
def test_undiscounted_advantage_is_return_minus_value(case: tuple[list[Unit], dict[str, int], dict[str, Floats]]) -> None:
    units, lengths, values = case
    found = gae(units, GAE, lengths, values)
    for at, u in enumerate(units):
        to_come = sum(later.reward for later in units[at:])
        for action in u.actions:
            assert found[action][1] == pytest.approx(np.full(lengths[action], to_come), abs=1e-9)
            assert found[action][0] == pytest.approx(found[action][1] - values[action], abs=1e-9)


@given(chains())
def test_at_lambda_zero_an_advantage_looks_one_token_ahead(case: tuple[list[Unit], dict[str, int], dict[str, Floats]]) -> None:
    units, lengths, values = case
    found = gae(units, replace(GAE, gamma=0.5, lam=0.0), lengths, values)
    flat = np.concatenate([found[action][0] for u in units for action in u.actions])
    v = np.concatenate([values[action] for u in units for action in u.actions])
    r = np.concatenate([np.append(np.zeros(sum(lengths[a] for a in u.actions) - 1), u.reward) for u in units])
    assert flat == pytest.approx(r + 0.5 * np.append(v[1:], 0) - v, abs=1e-9)


def test_whiten_by_hand() -> None:
    found = whiten({"a": floats(1, 2), "b": floats(3)})
    assert found["a"] == pytest.approx([-1.2247449, 0])
    assert found["b"] == pytest.approx([1.2247449])


def test_whitening_what_does_not_vary_gives_zero() -> None:
    assert whiten({"a": floats(4, 4)})["a"].tolist() == [0, 0]
