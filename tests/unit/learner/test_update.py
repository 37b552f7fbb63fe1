"""Updates on token batches: the gradient does not depend on how rows are cut or dealt to ranks, and weights hold their denominators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from rows import OBJECTIVE, THREADS, UNITS, act, see, thread, unit
from torch import Tensor, nn

from rolecast.credit import Floats
from rolecast.learner.batch import (
    Padded,
    TokenBatch,
    microbatches,
    rl_batch,
    weighted,
)
from rolecast.learner.learner import Learner
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.learner.step import _rollouts
from rolecast.types import Objective, Per, Thread, Unit

T = TypeVar("T")


@pytest.fixture
def batch() -> TokenBatch:
    return rl_batch("shared", THREADS, UNITS)


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
