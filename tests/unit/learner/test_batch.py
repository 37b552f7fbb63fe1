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
from rows import OBJECTIVE, THREADS, UNITS, act, see, thread, unit

from rolecast.learner.batch import (
    Padded,
    TokenBatch,
    action_lengths,
    microbatches,
    minibatches,
    rl_batch,
    sft_batch,
    weighted,
)
from rolecast.types import Action, Example, Observation, Per


@pytest.fixture
def batch() -> TokenBatch:
    return rl_batch("shared", THREADS, UNITS)


def test_rows_are_the_threads_that_hold_an_action_of_a_unit(batch: TokenBatch) -> None:
    assert batch.rows == 2
    assert batch.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    assert batch.starts.tolist() == [0, 7, 11]
    assert batch.row_lengths().tolist() == [7, 4]


def test_only_sampled_tokens_are_trained(batch: TokenBatch) -> None:
    assert batch.trained.tolist() == [False] * 3 + [True] * 2 + [False, True] + [False] + [True] * 3


def test_observations_belong_to_nothing(batch: TokenBatch) -> None:
    for name in ("action", "unit", "group", "tag"):
        assert set(getattr(batch, name)[~batch.trained].tolist()) == {-1}
    assert not batch.sampler_logprob[~batch.trained].any()


def test_trained_tokens_know_their_action_unit_group_and_tag(batch: TokenBatch) -> None:
    t = batch.trained
    assert [batch.actions[number] for number in batch.action[t]] == ["a", "a", "b", "c", "c", "c"]
    assert batch.unit[t].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.group[t].tolist() == [0, 0, 0, 1, 1, 1]
    assert [batch.tags[number] for number in batch.tag[t]] == ["planner"] * 3 + ["filter"] * 3
    assert batch.sampler_logprob[t].tolist() == pytest.approx([-0.4, -0.5, -0.7, -0.9, -0.1, -0.2])


def test_an_action_of_no_unit_is_only_read() -> None:
    found = rl_batch("shared", THREADS, [unit("u", "b")])
    assert found.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.trained.tolist() == [False] * 6 + [True]


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        rl_batch("shared", THREADS, [unit("u", "of another thread")])


def test_action_lengths() -> None:
    assert action_lengths(THREADS) == {"a": 2, "b": 1, "c": 3, "d": 1}


def test_sft_rows_carry_their_weight_on_trained_tokens() -> None:
    examples = [Example((1, 2, 3), (False, True, True), 0.5, "planner"), Example((4, 5), (False, True), tag="filter")]
    found = sft_batch("shared", examples)
    assert found.trained.tolist() == [False, True, True, False, True]
    assert found.advantage.tolist() == [0, 0.5, 0.5, 0, 1]
    assert found.unit.tolist() == [-1, 0, 0, -1, 1]
    assert [found.tags[number] for number in found.tag[found.trained]] == ["planner", "planner", "filter"]


@pytest.mark.parametrize(
    ("loss", "per", "of_u", "of_v"),
    [
        ("ppo", "token", 1 / 6, 1 / 6),
        ("ppo", "unit", 1 / 2 / 3, 1 / 2 / 3),
        ("ppo", "group", 1 / 8 / 3, 1 / 8 / 3),
        ("gspo", "token", 1 / 6, 1 / 6),
        ("gspo", "unit", 1 / 2, 1 / 2),
        ("gspo", "group", 1 / 8, 1 / 8),
    ],
)
def test_weights_with_eight_rollouts(batch: TokenBatch, loss: Any, per: Per, of_u: float, of_v: float) -> None:
    found = weighted(batch, replace(OBJECTIVE, loss=loss, per=per), {0: 4, 1: 4}).weight
    assert found[batch.trained].tolist() == pytest.approx([of_u] * 3 + [of_v] * 3)
    assert not found[~batch.trained].any()


UNEVEN = [unit("u", "a"), unit("v", "c"), unit("w", "d")]  # 2, 3 and 1 tokens


@pytest.mark.parametrize(
    ("loss", "per", "expected"),
    [
        ("ppo", "token", [1 / 6] * 6),
        ("ppo", "unit", [1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9, 1 / 3]),
        ("ppo", "group", [1 / 8, 1 / 8, 1 / 12, 1 / 12, 1 / 12, 1 / 4]),
        ("gspo", "unit", [1 / 3] * 6),
        ("gspo", "group", [1 / 4] * 6),
    ],
)
def test_a_unit_weighs_the_same_whatever_its_length(loss: Any, per: Per, expected: list[float]) -> None:
    batch = rl_batch("shared", THREADS, UNEVEN)
    found = weighted(batch, replace(OBJECTIVE, loss=loss, per=per), {0: 4})
    assert found.weight[batch.trained].tolist() == pytest.approx(expected)


def test_columns_by_action_come_back(batch: TokenBatch) -> None:
    numbers = {"a": np.array([1.0, 2.0]), "b": np.array([3.0]), "c": np.array([4.0, 5.0, 6.0])}
    filled = batch.with_actions("value", numbers)
    assert {action: column.tolist() for action, column in filled.by_action("value").items()} == {"a": [1, 2], "b": [3], "c": [4, 5, 6]}
    assert filled.value.tolist() == [0, 0, 0, 1, 2, 0, 3, 0, 4, 5, 6]


def test_by_action_after_rows_changed_places(batch: TokenBatch) -> None:
    columns = batch.select([1, 0]).by_action("sampler_logprob")
    assert {action: column.tolist() for action, column in columns.items()} == {
        "a": pytest.approx([-0.4, -0.5]), "b": pytest.approx([-0.7]), "c": pytest.approx([-0.9, -0.1, -0.2]),
    }  # fmt: skip


def test_select_takes_rows_in_the_given_order(batch: TokenBatch) -> None:
    found = batch.select([1, 0])
    assert found.ids.tolist() == [8, 9, 1, 2, 1, 2, 3, 4, 5, 6, 7]
    assert found.starts.tolist() == [0, 4, 11]
    assert [batch.actions[number] for number in found.action[found.trained]] == ["c", "c", "c", "a", "a", "b"]


def test_select_of_some_rows_keeps_their_numbers(batch: TokenBatch) -> None:
    found = batch.select([1])
    assert found.ids.tolist() == [8, 9, 1, 2]
    assert found.unit.tolist() == [-1, 1, 1, 1]
    assert list(found.by_action("sampler_logprob")) == ["c"]


def test_columns_by_action_come_back_after_select(batch: TokenBatch) -> None:
    found = batch.select([1])
    assert found.with_actions("value", found.by_action("sampler_logprob")).value.tolist() == found.sampler_logprob.tolist()


def test_padding_is_on_the_right_and_trained_tokens_are_found(batch: TokenBatch) -> None:
    padded = Padded.of(batch, [1, 0], torch.device("cpu"))
    assert padded.ids.tolist() == [[8, 9, 1, 2, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7]]
    assert padded.row.tolist() == [0, 0, 0, 1, 1, 1]
    assert padded.column.tolist() == [1, 2, 3, 3, 4, 6]
    assert padded.flat.tolist() == [8, 9, 10, 3, 4, 6]
    assert padded.ids[padded.row, padded.column].tolist() == batch.ids[padded.flat].tolist()


@st.composite
def batches(draw: st.DrawFn) -> TokenBatch:
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
    return rl_batch("shared", threads, [unit(str(key), *ids, group=str(key[0] % 3)) for key, ids in members.items()])


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


@given(batches(), st.integers(1, 120))
def test_microbatches_deal_every_row_once_and_cut_no_unit(batch: TokenBatch, limit: int) -> None:
    dealt = microbatches(batch, limit)
    assert sorted(row for rows in dealt for row in rows) == list(range(batch.rows))
    for rows in rows_holding(batch, "unit").values():
        assert sum(bool(rows & set(part)) for part in dealt) == 1


@given(batches(), st.integers(1, 120))
def test_microbatches_keep_to_their_limit_unless_a_unit_needs_more(batch: TokenBatch, limit: int) -> None:
    lengths, ties = batch.row_lengths(), connected(batch)
    for part in microbatches(batch, limit):
        padded = len(part) * max(int(lengths[row]) for row in part)
        assert padded <= limit or set(part) in ties


def test_microbatches_are_filled(batch: TokenBatch) -> None:
    assert microbatches(batch, 14) == [[0, 1]]
    assert microbatches(batch, 13) == [[0], [1]]


@given(batches(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_minibatches_keep_groups_whole(batch: TokenBatch, count: int, rng: Any) -> None:
    of_group = rows_holding(batch, "group")
    order = list(range(len(of_group)))
    rng.shuffle(order)
    dealt = minibatches(batch, count, order)
    assert len(dealt) == min(count, len(of_group))
    assert sorted(row for rows in dealt for row in rows) == list(range(batch.rows))
    sizes = [sum(rows <= set(part) for rows in of_group.values()) for part in dealt]
    assert sum(sizes) == len(of_group)
    assert max(sizes) - min(sizes) <= 1


def test_minibatches_follow_the_order() -> None:
    threads = [thread(str(i), see(1), act(f"a{i}", 2)) for i in range(4)]
    batch = rl_batch("shared", threads, [unit(f"u{i}", f"a{i}", group=f"g{i}") for i in range(4)])
    assert minibatches(batch, 2, [3, 1, 0, 2]) == [[3, 0], [1, 2]]
