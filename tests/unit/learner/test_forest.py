"""What rows begin with alike is one tree: its tokens, their order, and packs that hold to a budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from forests import random_forest
from rows import act, see, thread, unit

from rolecast.learner.batch import TokenBatch, make_batch
from rolecast.learner.cut import packs
from rolecast.learner.forest import Layout, Rows

SEEDS = range(12)


def batch_of(seed: int) -> TokenBatch:
    threads, units, _ = random_forest(seed)
    return make_batch("shared", threads, units)


def ids_of(batch: TokenBatch, row: int) -> tuple[int, ...]:
    return tuple(batch.ids[batch.starts[row] : batch.starts[row + 1]].tolist())


def prefixes(batch: TokenBatch, rows: list[int]) -> set[tuple[int, ...]]:
    """What a forest has a token for: everything that some row begins with."""
    return {ids_of(batch, row)[:length] for row in rows for length in range(1, len(ids_of(batch, row)) + 1)}


def rows_of(*ids: tuple[int, ...]) -> TokenBatch:
    """Each row's last token is trained."""
    threads = [thread(str(i), see(*of[:-1]), act(f"a{i}", of[-1])) for i, of in enumerate(ids)]
    return make_batch("shared", threads, [unit(f"u{i}", f"a{i}") for i in range(len(ids))])


def sets(batch: TokenBatch) -> list[list[int]]:
    return list(batch.rows_of_units().values())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_forest_has_a_token_for_everything_that_some_row_begins_with(seed: int) -> None:
    batch = batch_of(seed)
    every = Rows.of(batch, range(batch.rows), sharing=True)
    assert every.total == len(prefixes(batch, list(range(batch.rows)))) < len(batch.ids)
    draw = np.random.default_rng(seed)
    for size in (1, 2, 5, 9):
        numbers = np.sort(draw.choice(batch.rows, size, replace=False))
        assert every.tokens(numbers) == len(prefixes(batch, every.row[numbers].tolist()))
    assert Rows.of(batch, range(batch.rows), sharing=False).total == len(batch.ids)


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_token_sees_what_comes_before_it_in_its_rows_and_nothing_else(seed: int, sharing: bool) -> None:
    batch = batch_of(seed)
    layout = Layout.of(batch, range(batch.rows), sharing)
    total = len(layout.ids)
    pairs = {(int(q), int(k)) for token in layout.token for at, q in enumerate(token) for k in token[: at + 1]}
    assert {(q, k) for q in range(total) for k in range(total) if k <= q < layout.end[k]} == pairs
    for row, token in zip(layout.row.tolist(), layout.token, strict=True):
        assert tuple(layout.ids[token].tolist()) == ids_of(batch, row)
        assert layout.position[token].tolist() == list(range(len(token)))
    assert total == (len(prefixes(batch, list(range(batch.rows)))) if sharing else len(batch.ids))


def test_the_order_is_depth_first() -> None:
    """The example of `rolecast.weights.attention`."""
    layout = Layout.of(rows_of((6, 7), (1, 2, 4, 5), (1, 2, 3)), range(3), sharing=True)
    assert layout.ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert layout.position.tolist() == [0, 1, 2, 2, 3, 0, 1]
    assert layout.end.tolist() == [5, 5, 3, 5, 5, 7, 7]


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("budget", [1, 20, 45, 10**6])
def test_packs_hold_every_row_once_and_their_budget(budget: int, together: bool, sharing: bool) -> None:
    for seed in SEEDS:
        batch = batch_of(seed)
        micros = packs(batch, sets(batch), budget, together, sharing)
        assert sorted(row for micro in micros for row in micro.rows) == list(range(batch.rows))
        for micro in micros:
            size = len(prefixes(batch, list(micro.rows))) if sharing else sum(len(ids_of(batch, row)) for row in micro.rows)
            assert size <= budget or len(micro.rows) == 1
        of_row = {row: number for number, micro in enumerate(micros) for row in micro.rows}
        for rows in sets(batch):
            in_one = len({of_row[row] for row in rows}) == 1
            assert in_one or not together or not any(micros[of_row[row]].whole for row in rows)


def test_packs_of_a_forest_are_fewer() -> None:
    batch = batch_of(0)
    assert len(packs(batch, sets(batch), 60, False, True)) < len(packs(batch, sets(batch), 60, False, False))


def test_nothing_to_pack_is_no_pack() -> None:
    assert packs(batch_of(0), [], 50, together=True, sharing=True) == ()


def test_a_tree_that_fits_is_in_one_pack() -> None:
    """Two groups of three; each fits a pack, and both do not."""
    a, b = (1,) * 10, (2,) * 10
    batch = rows_of((*a, 3, 3), (*b, 3, 3), (*a, 4, 4), (*b, 4, 4), (*a, 5, 5), (*b, 5, 5))
    assert sorted(micro.rows for micro in packs(batch, sets(batch), 20, False, True)) == [(0, 2, 4), (1, 3, 5)]


def test_a_tree_that_fits_is_whole_also_where_its_rows_would_fill_holes() -> None:
    a, b = (1,) * 10, (2,) * 10
    batch = rows_of(*((*of, *(row,) * own) for of, most in ((a, 8), (b, 7)) for row, own in ((3, most), (4, 2), (5, 2))))
    assert sorted(micro.rows for micro in packs(batch, sets(batch), 36, False, True)) == [(0, 1, 2), (3, 4, 5)]


def test_a_row_goes_where_it_adds_the_fewest_tokens() -> None:
    """Not to the first pack that has room: there it shares the system prompt alone."""
    system = (9,) * 4
    other, kin = (*system, *(7,) * 56), (*system, *(1,) * 26)
    batch = rows_of(other, *((*kin, 20 + i, *(3,) * 5) for i in range(12)), (*kin, 50, 3, 3))
    micros = packs(batch, sets(batch), 90, False, True)
    assert [micro.rows for micro in micros] == [(0,), tuple(range(1, 11)), (11, 12, 13)]


def test_a_tree_larger_than_a_pack_falls_apart_where_it_branches() -> None:
    """One system prompt over two groups: each group stays whole, and the prompt is in both packs."""
    s, a, b = (9,) * 4, (1,) * 6, (2,) * 6
    batch = rows_of((*s, *a, 3, 3), (*s, *b, 3, 3), (*s, *a, 4, 4), (*s, *b, 4, 4))
    micros = packs(batch, sets(batch), 15, False, True)
    assert sorted(micro.rows for micro in micros) == [(0, 2), (1, 3)]


def test_members_of_a_group_that_is_cut_lie_with_their_kin() -> None:
    """Of 20 members over a prompt of 30 tokens, with 6 of their own, as many as fit are in a pack: the prompt is repeated once a pack."""
    draw = np.random.default_rng(0)
    batch = rows_of(*((*(1,) * 30, 10 + i, *draw.integers(2, 9, 5).tolist()) for i in range(20)), *((40 + i, *(2,) * 39) for i in range(4)))
    micros = packs(batch, sets(batch), 90, False, True)
    held = [len([row for row in micro.rows if row < 20]) for micro in micros]
    assert sorted(count for count in held if count) == [10, 10]
    sizes = [len(prefixes(batch, list(micro.rows))) for micro in micros]
    assert sum(sizes) == 20 * 6 + 4 * 40 + 2 * 30


def test_small_rows_fill_what_large_ones_leave() -> None:
    batch = rows_of(*((i, *(i,) * (size - 1)) for i, size in enumerate([40, 60, 35, 65, 30, 70, 50, 50])))
    micros = packs(batch, sets(batch), 100, False, False)
    assert [sum(len(ids_of(batch, row)) for row in micro.rows) for micro in micros] == [100] * 4


def test_packs_do_not_depend_on_the_order_of_units() -> None:
    batch = batch_of(3)
    once, again = (packs(batch, order, 45, True, True) for order in (sets(batch), sets(batch)[::-1]))
    assert once == again
    assert all(a < b for micro in once for a, b in pairwise(micro.rows))


@pytest.mark.parametrize("seed", [0, 1, 2, 14])  # of the last two, a pack gets kin of what it held before others came
def test_a_family_goes_where_it_adds_the_fewest_tokens(seed: int) -> None:
    """Counted anew for every pack, with all that they have in common."""
    threads, units, _ = random_forest(seed, groups=4, members=10)
    batch = make_batch("shared", threads, units)
    forest = Rows.of(batch, range(batch.rows), True)
    budget = 60
    number = {row: place for place, row in enumerate(forest.row.tolist())}
    families = forest._families([[row] for row in range(batch.rows)], np.array([number[row] for row in range(batch.rows)]), budget)
    ordered = sorted((np.sort([number[row] for row in family]) for family in families), key=lambda of: (-forest.tokens(of), of[0]))
    packs: list[np.ndarray] = []
    for family in ordered:
        grown = [np.union1d(pack, family) for pack in packs]
        costs = [(forest.tokens(new) - forest.tokens(pack), place) for place, (pack, new) in enumerate(zip(packs, grown, strict=True))]
        room = [cost for cost, new in zip(costs, grown, strict=True) if forest.tokens(new) <= budget]
        if room:
            packs[min(room)[1]] = grown[min(room)[1]]
        else:
            packs.append(family)
    wanted = [tuple(sorted(forest.row[pack].tolist())) for pack in packs]
    assert forest.packs([[row] for row in range(batch.rows)], budget) == wanted
    assert len(wanted) > 2
