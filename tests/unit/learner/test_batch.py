"""Token batches: what is trained, what it weighs, and how rows are dealt to minibatches and micro-batches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rows import THREADS, UNITS, act, cut_of, objective, see, thread, unit

from rolecast.learner.batch import Padded, TokenBatch, action_lengths, example_units, make_batch
from rolecast.learner.cut import Cut, Micro, _pieces, deal_groups, microbatches
from rolecast.types import Action, Example, KlTerm, Observation, Unit


@pytest.fixture
def batch() -> TokenBatch:
    return make_batch("shared", THREADS, UNITS)


def test_rows_are_the_threads_that_hold_an_action_of_a_unit(batch: TokenBatch) -> None:
    assert batch.rows == 2
    assert batch.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    assert batch.starts.tolist() == [0, 7, 11]
    assert batch.row_lengths().tolist() == [7, 4]


def test_only_sampled_tokens_are_trained(batch: TokenBatch) -> None:
    assert batch.trained.tolist() == [False] * 3 + [True] * 2 + [False, True] + [False] + [True] * 3


def test_observations_belong_to_nothing(batch: TokenBatch) -> None:
    for name in ("action", "unit", "tag"):
        assert set(getattr(batch, name)[~batch.trained].tolist()) == {-1}
    assert not batch.sampler_logprob[~batch.trained].any()


def test_trained_tokens_know_their_action_unit_and_tag(batch: TokenBatch) -> None:
    t = batch.trained
    assert [batch.actions[number] for number in batch.action[t]] == ["a", "a", "b", "c", "c", "c"]
    assert batch.unit[t].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.units == ("u", "v")
    assert [batch.tags[number] for number in batch.tag[t]] == ["planner"] * 3 + ["filter"] * 3
    assert batch.sampler_logprob[t].tolist() == pytest.approx([-0.4, -0.5, -0.7, -0.9, -0.1, -0.2])


def test_an_action_of_no_unit_is_only_read() -> None:
    found = make_batch("shared", THREADS, [unit("u", "b")])
    assert found.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.trained.tolist() == [False] * 6 + [True]


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="holds an action of the units"):
        make_batch("shared", THREADS, [unit("u", "of another thread")])


def test_action_lengths() -> None:
    assert action_lengths(THREADS) == {"a": 2, "b": 1, "c": 3, "d": 1}


def test_examples_are_rows_of_their_own_beside_threads() -> None:
    examples = [Example((1, 2, 3), (False, True, True), 0.5, "planner"), Example((4, 5), (False, True), tag="filter")]
    found = make_batch("shared", THREADS, [unit("u", "a", "b")], examples)
    assert found.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]
    assert found.unit.tolist() == [-1] * 3 + [0, 0, -1, 0] + [-1, 1, 1, -1, 2]
    assert found.units == ("u", "example-0", "example-1")
    assert [found.tags[number] for number in found.tag[found.trained]] == ["planner"] * 3 + ["planner", "planner", "filter"]


def weights(cut: Cut) -> list[float]:
    """Of the policy term, of trained tokens. Untrained ones weigh nothing."""
    assert not cut.batch.policy_weight[~cut.batch.trained].any()
    found: list[float] = cut.batch.policy_weight[cut.batch.trained].tolist()
    return found


@pytest.mark.parametrize(
    ("loss", "per", "of_u", "of_v"),
    [
        ("ppo", "token", 1 / 6, 1 / 6),
        ("ppo", "unit", 1 / 2 / 3, 1 / 2 / 3),
        ("ppo", "group", 1 / 8 / 3, 1 / 4 / 3),
        ("gspo", "unit", 1 / 2, 1 / 2),
        ("gspo", "group", 1 / 8, 1 / 4),
    ],
)
def test_weights_count_rollouts_that_have_no_gradient(loss: str, per: str, of_u: float, of_v: float) -> None:
    """Of four rollouts of question g and two of h one each has an advantage; per token and unit only theirs count here."""
    silent = [unit(f"s{i}", "d", group="g") for i in range(3)] + [unit("s3", "d", group="h")] if per == "group" else []
    assert weights(cut_of(objective(loss, per), THREADS, UNITS, of=silent)) == pytest.approx([of_u] * 3 + [of_v] * 3)


def test_units_without_advantage_stay_in_the_denominator() -> None:
    silent = [unit("w", "d")]  # one token
    assert weights(cut_of(objective("ppo", "token"), THREADS, UNITS, of=silent)) == pytest.approx([1 / 7] * 6)
    assert weights(cut_of(objective("gspo", "unit"), THREADS, UNITS, of=silent)) == pytest.approx([1 / 3] * 6)


UNEVEN = [unit("u", "a"), unit("v", "c"), unit("w", "d")]  # 2, 3 and 1 tokens


@pytest.mark.parametrize(
    ("loss", "per", "expected"),
    [
        ("ppo", "token", [1 / 6] * 6),
        ("ppo", "unit", [1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9, 1 / 3]),
        ("ppo", "group", [1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9, 1 / 3]),
        ("gspo", "unit", [1 / 3] * 6),
        ("gspo", "group", [1 / 3] * 6),
    ],
)
def test_a_unit_weighs_the_same_whatever_its_length(loss: str, per: str, expected: list[float]) -> None:
    assert weights(cut_of(objective(loss, per), THREADS, UNEVEN)) == pytest.approx(expected)


def test_the_kl_term_has_a_denominator_of_its_own_and_does_not_weigh_tokens_by_the_length_of_their_unit() -> None:
    o = objective("gspo", "group")
    found = cut_of(replace(o, kl=KlTerm(0.1)), THREADS, UNEVEN).batch
    assert found.kl_weight[found.trained].tolist() == pytest.approx([1 / 6] * 6)
    assert found.policy_weight[found.trained].tolist() == pytest.approx([1 / 3] * 6)


def test_denominators_are_those_of_the_tokens_own_minibatch() -> None:
    found = cut_of(replace(objective("ppo", "token"), minibatches=2), THREADS, UNITS).batch
    assert found.policy_weight[found.trained].tolist() == pytest.approx([1 / 3] * 6)


def test_columns_by_action_come_back(batch: TokenBatch) -> None:
    numbers = {"a": np.array([1.0, 2.0]), "b": np.array([3.0]), "c": np.array([4.0, 5.0, 6.0])}
    filled = batch.with_actions("value", numbers)
    assert {action: column.tolist() for action, column in filled.by_action("value").items()} == {"a": [1, 2], "b": [3], "c": [4, 5, 6]}
    assert filled.value.tolist() == [0, 0, 0, 1, 2, 0, 3, 0, 4, 5, 6]


def test_padding_is_on_the_right_and_trained_tokens_are_found(batch: TokenBatch) -> None:
    padded = Padded.of(batch, [1, 0], torch.device("cpu"))
    assert padded.ids.tolist() == [[8, 9, 1, 2, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7]]
    assert padded.row.tolist() == [0, 0, 0, 1, 1, 1]
    assert padded.column.tolist() == [1, 2, 3, 3, 4, 6]
    assert padded.flat.tolist() == [8, 9, 10, 3, 4, 6]
    assert padded.ids[padded.row, padded.column].tolist() == batch.ids[padded.flat].tolist()


Drawn = tuple[TokenBatch, list[Unit]]


@st.composite
def batches(draw: st.DrawFn) -> Drawn:
    """Threads of any lengths; each action belongs to one of a few units, so units reach over threads; groups hold whole units."""
    actions: list[str] = []
    threads = []
    for row in range(draw(st.integers(1, 12))):
        turns: list[Action | Observation] = []
        for turn in range(draw(st.integers(1, 3))):
            turns += [see(*[1] * draw(st.integers(1, 6))), act(f"{row}.{turn}", *[2] * draw(st.integers(1, 4)))]
            actions.append(f"{row}.{turn}")
        threads.append(thread(str(row), *turns))
    of = {row: draw(st.integers(0, 7)) for row in range(len(threads))}
    members = defaultdict(list)
    for action in actions:
        row = int(action.split(".")[0])
        members[of[row], draw(st.integers(0, 1))].append(action)
    units = [unit(str(key), *ids, group=str(key[0] % 3)) for key, ids in members.items()]
    return make_batch("shared", threads, units), units


def rows_holding(batch: TokenBatch, column: str) -> dict[int, set[int]]:
    found: defaultdict[int, set[int]] = defaultdict(set)
    for row, (start, end) in enumerate(pairwise(batch.starts.tolist())):
        for number in set(getattr(batch, column)[start:end].tolist()) - {-1}:
            found[number].add(row)
    return found


def connected(batch: TokenBatch) -> list[set[int]]:
    """Rows that units tie together, directly or through others."""
    ties: list[set[int]] = [{row} for row in range(batch.rows)]
    for rows in rows_holding(batch, "unit").values():
        joined = set().union(*(tie for tie in ties if tie & rows))
        ties = [tie for tie in ties if not tie & rows] + [joined]
    return ties


def micros(batch: TokenBatch, limit: int, together: bool = True) -> tuple[Micro, ...]:
    return microbatches(batch, batch.rows_of_units().values(), limit, together)


@given(batches())
def test_rows_of_units(drawn: Drawn) -> None:
    batch, _ = drawn
    expected = {batch.units[number]: sorted(rows) for number, rows in rows_holding(batch, "unit").items()}
    assert batch.rows_of_units() == expected


@given(batches(), st.integers(1, 120), st.booleans())
def test_microbatches_deal_every_row_once_and_say_which_units_are_whole(drawn: Drawn, limit: int, together: bool) -> None:
    batch, _ = drawn
    dealt = micros(batch, limit, together)
    assert sorted(row for part in dealt for row in part.rows) == list(range(batch.rows))
    if together:
        for part in dealt:
            held = [rows for rows in rows_holding(batch, "unit").values() if rows & set(part.rows)]
            assert part.whole <= all(rows <= set(part.rows) for rows in held)


@given(batches(), st.integers(1, 120), st.booleans())
def test_microbatches_keep_to_their_limit_unless_one_row_needs_more(drawn: Drawn, limit: int, together: bool) -> None:
    batch, _ = drawn
    lengths = batch.row_lengths()
    for part in micros(batch, limit, together):
        padded = len(part.rows) * max(int(lengths[row]) for row in part.rows)
        assert padded <= limit or len(part.rows) == 1


@given(batches(), st.integers(1, 120))
def test_only_what_is_too_large_is_cut_apart(drawn: Drawn, limit: int) -> None:
    batch, _ = drawn
    lengths = batch.row_lengths()
    for tie in connected(batch):
        size = len(tie) * max(int(lengths[row]) for row in tie)
        parts = [part for part in micros(batch, limit) if tie & set(part.rows)]
        assert (len(parts) == 1 and parts[0].whole) == (size <= limit or len(tie) == 1)


def test_what_is_too_large_is_cut_into_pieces_that_are_filled_each_by_its_own_width() -> None:
    assert _pieces(range(11), [4, 4, *[1] * 9], 8) == [(0, 1), tuple(range(2, 10)), (10,)]


def test_microbatches_are_filled(batch: TokenBatch) -> None:
    assert micros(batch, 14) == (Micro((0, 1)),)
    assert micros(batch, 13) == (Micro((0,)), Micro((1,)))


@given(batches(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_minibatches_keep_groups_whole(drawn: Drawn, count: int, rng: Any) -> None:
    _, units = drawn
    groups = sorted({unit.group for unit in units})
    order = list(range(len(groups)))
    rng.shuffle(order)
    dealt = deal_groups(units, count, order)
    assert len(dealt) == min(count, len(groups))
    assert sorted(group for part in dealt for group in part) == groups
    sizes = [len(part) for part in dealt]
    assert max(sizes) - min(sizes) <= 1


def test_minibatches_follow_the_order() -> None:
    units = [unit(f"u{i}", f"a{i}", group=f"g{i}") for i in range(4)]
    assert deal_groups(units, 2, [3, 1, 0, 2]) == [{"g3", "g0"}, {"g1", "g2"}]


def test_a_minibatch_whose_rewards_are_all_equal_holds_no_rows() -> None:
    o = replace(objective("ppo", "token"), minibatches=2)
    found = cut_of(o, THREADS, [UNITS[0]], of=[unit("silent", "c", group="h")])
    assert [[micro.rows for micro in minibatch] for minibatch in found.minibatches] == [[(0,)], []]


def test_rows_without_a_group_are_groups_of_their_own() -> None:
    rows = [Example((1, 2), (False, True), group=group) for group in ("", "q", "", "q")]
    assert [one.group for one in example_units(rows, "o")] == ["example-0", "q", "example-2", "q"]
