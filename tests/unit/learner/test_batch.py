"""Token batches: what is trained, what it weighs, and how rows are dealt to minibatches and micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rolecast.credit import Floats
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
from rolecast.learner.learner import Learner
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.learner.step import _rollouts
from rolecast.types import Action, Example, Objective, Observation, Per, Thread, Unit

T = TypeVar("T")
OBJECTIVE = Objective("o", "shared", "ppo", "group", "token", 1e-3, minibatches=1)


def act(id: str, *ids: int) -> Action:
    return Action(id, ids, tuple(-0.1 * token for token in ids), "v", "", "stop")


def see(*ids: int) -> Observation:
    return Observation(ids, "")


def thread(id: str, *turns: Action | Observation) -> Thread:
    return Thread(id, "planner", "shared", turns=list(turns))


def unit(id: str, *actions: str, group: str = "g", tag: str = "planner") -> Unit:
    return Unit(id, actions, 1.0, "o", tag=tag, group=group, rollout=id)


THREADS = [
    thread("t0", see(1, 2, 3), act("a", 4, 5), see(6), act("b", 7)),
    thread("t1", see(8), act("c", 9, 1, 2)),
    thread("t2", see(3, 3), act("d", 4)),
]
UNITS = [unit("u", "a", "b", group="g"), unit("v", "c", group="h", tag="filter")]


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


class Bigram(nn.Module):
    """A policy small enough to differentiate exactly: the next token depends on the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 100, dtype=torch.float32).reshape(10, 10).sin())

    def forward(self, rows: Padded) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(self.table[rows.ids[rows.row, rows.column - 1]], -1)
        return logprobs.gather(-1, rows.ids[rows.row, rows.column][:, None]).squeeze(-1), torch.zeros(len(rows.row))


class Gradients:
    """A backend that keeps the gradient of each minibatch and changes nothing."""

    def __init__(self, policy: Bigram) -> None:
        self._policy = policy
        self.seen: list[Tensor] = []
        self.forward = policy

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()

    def step(self, number: int) -> float:
        assert self._policy.table.grad is not None
        self.seen.append(self._policy.table.grad.clone())
        self._policy.table.grad = None
        return 0.0

    def rate(self, number: int) -> float:
        return 0.0


class Alone(Ranks):
    """One rank of several, run by itself: what others would add is added by the test."""

    def sum(self, array: Floats) -> Floats:
        return array

    def gather(self, value: T) -> list[T]:
        return [value]


def gradient_of_update(
    objective: Objective, batch: TokenBatch, max_tokens: int, rollouts: dict[int, int], ranks: Ranks = ALONE
) -> tuple[Tensor, float]:
    policy = Bigram()
    backend: Any = Gradients(policy)
    learner: Any = Learner(objective, policy, backend, seed=0, max_tokens=max_tokens, reference=policy, ranks=ranks)  # type: ignore[arg-type]
    scored = replace(learner, ranks=ALONE).score(batch)
    metrics = learner.update(replace(scored, ref_logprob=scored.old_logprob - 0.3 * batch.trained), rollouts)
    [gradient] = backend.seen
    return gradient, metrics["loss"]


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("loss", ["ppo", "gspo", "nll"])
def test_the_gradients_of_all_ranks_add_up_to_that_of_one(loss: Any, world: int) -> None:
    objective = replace(OBJECTIVE, loss=loss, per="group", kl=0.5, lr=1e-3)
    batch, rollouts = many_rows()
    whole, total = gradient_of_update(objective, batch, 10**6, rollouts)
    parts = [gradient_of_update(objective, batch, 40, rollouts, Alone(rank, world)) for rank in range(world)]
    assert torch.allclose(sum((gradient for gradient, _ in parts), torch.zeros_like(whole)), whole, atol=1e-6)
    assert sum(share for _, share in parts) / world == pytest.approx(total, abs=1e-6)  # a rank says its share times the world


def test_a_rank_that_runs_along_with_weight_0_adds_nothing_to_the_metrics() -> None:
    batch, rollouts = many_rows()
    learner: Any = Learner(OBJECTIVE, Bigram(), None, seed=0, max_tokens=10**6, ranks=Alone(1, 2))  # type: ignore[arg-type]
    learner.backend = Gradients(learner.policy)
    assert "ratio" not in learner.update(batch, rollouts)  # the one micro-batch is the other rank's
    assert torch.equal(learner.backend.seen[0], torch.zeros(10, 10))


def test_every_rank_takes_as_many_passes_and_each_item_counts_once() -> None:
    shares = [Ranks(rank, 3).share(list("abcd")) for rank in range(3)]
    assert {len(share) for share in shares} == {2}
    assert sorted(item for share in shares for item, counts in share if counts) == list("abcd")


def many_rows() -> tuple[TokenBatch, dict[int, int]]:
    """Two units of each of six rollouts, spread over threads of different lengths; advantages differ by unit."""
    threads: list[Thread] = []
    units: list[Unit] = []
    advantage: dict[str, Sequence[float]] = {}
    for i in range(6):
        names = [f"{i}{name}" for name in "abc"]
        sizes = [1 + i % 3, 2, 1 + i % 2]
        threads += [
            thread(f"{i}p", see(*range(1 + i)), act(names[0], *range(3, 3 + sizes[0])), see(5, i), act(names[1], 4, i)),
            thread(f"{i}q", see(7), act(names[2], *range(1, 1 + sizes[2]))),
        ]
        units += [unit(f"{i}u", names[0], names[2], group=str(i % 2)), unit(f"{i}v", names[1], group=str(i % 2))]
        advantage |= {names[0]: [i - 2.0] * sizes[0], names[2]: [i - 2.0] * sizes[2], names[1]: [1.5 - i] * 2}
    batch = rl_batch("shared", threads, units)
    return batch.with_actions("advantage", {key: np.array(numbers) for key, numbers in advantage.items()}), {0: 3, 1: 3}


@pytest.mark.parametrize("per", ["token", "unit", "group"])
@pytest.mark.parametrize("loss", ["ppo", "gspo", "nll"])
@pytest.mark.parametrize("kl", [0.0, 0.5])
def test_the_update_is_the_same_however_it_is_cut(loss: Any, per: Per, kl: float) -> None:
    objective = replace(OBJECTIVE, loss=loss, per=per, kl=kl, lr=1e-3)
    batch, rollouts = many_rows()
    whole, total = gradient_of_update(objective, batch, 10**6, rollouts)
    assert len(microbatches(batch, 10**6)) == 1
    for max_tokens, parts in ((1, 6), (40, 4)):
        assert len(microbatches(batch, max_tokens)) >= parts
        cut, cut_total = gradient_of_update(objective, batch, max_tokens, rollouts)
        assert torch.allclose(cut, whole, atol=1e-6)
        assert cut_total == pytest.approx(total, abs=1e-6)
    assert whole.abs().max() > 1e-3


def test_the_gradient_of_gspo_is_that_of_one_ratio_per_unit() -> None:
    batch, rollouts = many_rows()
    gradient, _ = gradient_of_update(replace(OBJECTIVE, loss="gspo", per="group"), batch, 10**6, rollouts)
    policy, whole = Bigram(), Padded.of(batch, range(batch.rows), torch.device("cpu"))
    logprob, _ = policy(whole)
    expected = torch.zeros(())
    for number in range(12):
        of_unit = torch.from_numpy(batch.unit[whole.flat] == number)
        ratio = torch.exp((logprob - logprob.detach())[of_unit].mean())
        expected = expected - ratio * batch.advantage[whole.flat][of_unit][0] / 6
    expected.backward()
    assert policy.table.grad is not None
    assert torch.allclose(gradient, policy.table.grad, atol=1e-6)


def loss_of_two_groups(rollouts: dict[int, int]) -> float:
    """One unit with advantage 1 in each of two groups: what DECOR's eq. 4 sums up, at a ratio of 1."""
    threads = [thread(name, see(1), act(name, 2, 3)) for name in "ab"]
    batch = rl_batch("shared", threads, [unit(f"u{name}", name, group=name) for name in "ab"])
    batch = batch.with_actions("advantage", dict.fromkeys("ab", np.ones(2)))
    _, loss = gradient_of_update(replace(OBJECTIVE, loss="gspo", per="group"), batch, 10**6, rollouts)
    return loss


def test_a_unit_weighs_one_over_the_rollouts_of_its_own_group(batch: TokenBatch) -> None:
    found = weighted(batch, replace(OBJECTIVE, loss="gspo", per="group"), {0: 2, 1: 5}).weight
    assert found[batch.trained].tolist() == pytest.approx([1 / 2 / 2] * 3 + [1 / 2 / 5] * 3)
    alone = weighted(batch.select([1]), replace(OBJECTIVE, loss="ppo", per="group"), {0: 2, 1: 5})
    assert alone.weight[alone.trained].tolist() == pytest.approx([1 / 5 / 3] * 3)


def test_rollouts_are_counted_by_group_with_those_that_have_no_gradient(batch: TokenBatch) -> None:
    silent = [unit("w", "elsewhere", group="g"), unit("x", "nowhere", group="g"), unit("y", "away", group="another")]
    assert _rollouts([*UNITS, *silent], batch) == {0: 3, 1: 1}


def test_the_loss_is_the_mean_over_rollouts_and_questions() -> None:
    assert loss_of_two_groups({0: 8, 1: 8}) == pytest.approx(-(1 / 8 + 1 / 8) / 2)


def test_the_loss_is_the_mean_over_questions_whose_groups_differ_in_size() -> None:
    assert loss_of_two_groups({0: 8, 1: 2}) == pytest.approx(-(1 / 8 + 1 / 2) / 2)
