"""Updates on token batches: the gradient does not depend on how rows are cut or dealt to ranks, and weights hold their denominators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from rows import THREADS, UNITS, Alone, act, cut_of, objective, see, thread, unit
from torch import Tensor, nn

from rolecast.credit import Floats
from rolecast.learner.batch import Padded, action_lengths
from rolecast.learner.cut import Cut
from rolecast.learner.learner import Learner
from rolecast.learner.ranks import Ranks
from rolecast.types import Objective, PolicyTerm, Thread, Unit

T = TypeVar("T")


class Bigram(nn.Module):
    """A policy small enough to differentiate exactly: the next token depends on the one before."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 100, dtype=torch.float32).reshape(10, 10).sin() * (1 + shift))

    def forward(self, rows: Padded) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(self.table[rows.ids[rows.row, rows.column - 1]], -1)
        return logprobs.gather(-1, rows.ids[rows.row, rows.column][:, None]).squeeze(-1), torch.zeros(len(rows.row))


class Gradients:
    """A backend that keeps the gradient of each update and changes nothing. The frozen base is another policy."""

    def __init__(self, policy: Bigram) -> None:
        self._policy = policy
        self.seen: list[Tensor] = []

    def forward(self, slot: str, rows: Padded, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        return (Bigram(0.3) if slot == "frozen" else self._policy)(rows)

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()

    def step(self, numbers: dict[str, int]) -> dict[str, float]:
        assert self._policy.table.grad is not None
        self.seen.append(self._policy.table.grad.clone())
        self._policy.table.grad = None
        return dict.fromkeys(numbers, 0.0)

    def rate(self, slot: str, number: int) -> float:
        return 0.0


CPU: Any = SimpleNamespace(device=torch.device("cpu"))


def learner_of(o: Objective, policy: Bigram, ranks: Ranks | None = None) -> Any:
    return Learner((o,), CPU, Gradients(policy), 0, ranks=ranks or Ranks())  # type: ignore[arg-type]


def scored(o: Objective, of: Cut, advantage: dict[str, Sequence[float]], policy: Bigram) -> Cut:
    """With log-probs of a policy that has moved on since, so that ratios are not 1."""
    found = learner_of(o, Bigram(0.05)).score(of)
    batch = found.batch.with_actions("advantage", {action: np.array(numbers) for action, numbers in advantage.items()})
    return replace(found, batch=replace(batch, sampler_logprob=batch.old_logprob))


def gradient_of_update(
    o: Objective, threads: Sequence[Thread], units: Sequence[Unit], advantage: dict[str, Sequence[float]], max_tokens: int,
    ranks: Ranks | None = None, of: Sequence[Unit] = (),
) -> tuple[Tensor, float]:  # fmt: skip
    policy = Bigram()
    learner = learner_of(o, policy, ranks)
    whole = scored(o, cut_of(o, threads, units, 10**6, of), advantage, policy)
    cut = cut_of(o, threads, units, max_tokens, of)
    metrics = learner.update([replace(whole, minibatches=cut.minibatches)])
    [gradient] = learner.backend.seen
    return gradient, metrics["loss"]


def many_rows() -> tuple[list[Thread], list[Unit], dict[str, Sequence[float]]]:
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
        of = {"group": str(i % 2), "rollout": str(i)}
        units += [unit(f"{i}u", names[0], names[2], **of), unit(f"{i}v", names[1], **of)]
        advantage |= {names[0]: [i - 2.0] * sizes[0], names[2]: [i - 2.0] * sizes[2], names[1]: [1.5 - i] * 2}
    return threads, units, advantage


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize(("loss", "per"), [("ppo", "group"), ("gspo", "group"), ("ppo", "token")])
def test_the_gradients_of_all_ranks_add_up_to_that_of_one(loss: str, per: str, world: int) -> None:
    o = objective(loss, per, kl=0.5)
    whole, total = gradient_of_update(o, *many_rows(), 10**6)
    parts = [gradient_of_update(o, *many_rows(), 40, Alone(rank, world)) for rank in range(world)]
    assert torch.allclose(sum((gradient for gradient, _ in parts), torch.zeros_like(whole)), whole, atol=1e-6)
    assert sum(share for _, share in parts) / world == pytest.approx(total, abs=1e-6)  # a rank says its share times the world


def test_a_rank_that_runs_along_with_weight_0_adds_nothing_to_the_metrics() -> None:
    o = objective("ppo", "token")
    threads, units, advantage = many_rows()
    policy = Bigram()
    learner = learner_of(o, policy, Alone(1, 2))
    metrics = learner.update([scored(o, cut_of(o, threads, units), advantage, policy)])
    assert "ratio" not in metrics  # the one micro-batch is the other rank's
    assert torch.equal(learner.backend.seen[0], torch.zeros(10, 10))


@pytest.mark.parametrize("loss", ["ppo", "gspo"])
def test_no_number_is_read_before_the_last_pass_is_under_way(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU would have nothing to do until Python has seen the number and launched the next pass."""
    o = objective(loss, "group", kl=0.5)
    threads, units, advantage = many_rows()
    policy, passes, read = Bigram(), [0], []
    learner = learner_of(o, policy)
    whole, of = scored(o, cut_of(o, threads, units), advantage, policy), cut_of(o, threads, units, 40)
    for name in ("item", "__float__", "__bool__", "cpu", "tolist", "numpy", "nonzero"):
        own = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda *given, own=own: read.append(passes[0]) or own(*given))
    backward = learner.backend.backward
    monkeypatch.setattr(learner.backend, "backward", lambda loss, last: passes.append(passes.pop() + 1) or backward(loss, last))
    learner.update([replace(whole, minibatches=of.minibatches)])
    assert passes[0] > 2
    assert set(read) == {passes[0]}


def test_a_rank_that_runs_along_scores_nothing() -> None:
    """The one micro-batch is the other rank's: its log-probs would be counted twice."""
    o = objective("ppo", "token")
    threads, units, _ = many_rows()
    mine, other = (learner_of(o, Bigram(), Alone(rank, 2)).score(cut_of(o, threads, units)).batch.old_logprob for rank in (0, 1))
    assert np.abs(mine).max() > 0.1
    assert not other.any()


def test_log_probs_of_all_ranks_are_put_together() -> None:
    class Twice(Alone):
        def sum(self, array: Floats) -> Floats:
            return 2 * array

    o = objective("ppo", "token")
    threads, units, _ = many_rows()
    alone, twice = (learner_of(o, Bigram(), ranks).score(cut_of(o, threads, units)).batch.old_logprob for ranks in (Alone(), Twice()))
    assert twice == pytest.approx(2 * alone)
    assert np.abs(alone).max() > 0.1


def test_a_slot_whose_minibatch_is_empty_is_not_stepped_and_its_schedule_goes_on() -> None:
    class Steps(Gradients):
        def step(self, numbers: dict[str, int]) -> dict[str, float]:
            stepped.append(numbers)
            return dict.fromkeys(numbers, 0.0)

    stepped: list[dict[str, int]] = []
    one = replace(objective("ppo", "token"), minibatches=2)
    other = replace(one, name="p", slot="other")
    learner: Any = Learner((one, other), CPU, Steps(Bigram()), 0)  # type: ignore[arg-type]
    learner.update([cut_of(one, THREADS, UNITS), cut_of(other, THREADS, UNITS[:1], of=[unit("silent", "d", group="h")])])
    assert stepped == [{"other": 0, "shared": 0}, {"shared": 1}]
    assert learner.updates == {"other": 2, "shared": 2}


def test_questions_meet_in_other_minibatches_in_every_step() -> None:
    o = replace(objective("ppo", "token"), minibatches=3)
    threads, units, _ = many_rows()
    units = [replace(unit, group=unit.rollout) for unit in units]
    dealt = []
    for updates in (0, 1, 2, 3, None):
        learner = learner_of(o, Bigram())
        learner.updates = {} if updates is None else {"shared": updates}  # a slot that was not updated has made none
        minibatches = learner.cut(o, threads, units, units, action_lengths(threads)).minibatches
        dealt.append([sorted(row for micro in minibatch for row in micro.rows) for minibatch in minibatches])
    assert dealt[0] == dealt[-1]
    assert len({str(deal) for deal in dealt}) == 4


def test_the_last_pass_of_an_update_is_said_to_be_the_last() -> None:
    said: list[bool] = []

    class Noting(Gradients):
        def backward(self, loss: Tensor, last: bool) -> None:
            said.append(last)
            super().backward(loss, last)

    o = replace(objective("ppo", "token"), minibatches=2)
    threads, units, advantage = many_rows()
    learner: Any = Learner((o,), CPU, Noting(Bigram()), 0)  # type: ignore[arg-type]
    of = scored(o, cut_of(o, threads, units, 30), advantage, Bigram())
    learner.update([of])
    counts = [len(minibatch) for minibatch in of.minibatches]
    assert len(counts) == 2
    assert min(counts) > 1
    assert said == [place == count - 1 for count in counts for place in range(count)]


def test_every_rank_takes_as_many_passes_and_each_item_counts_once() -> None:
    shares = [Ranks(rank, 3).share(list("abcd")) for rank in range(3)]
    assert {len(share) for share in shares} == {2}
    assert sorted(item for share in shares for item, counts in share if counts) == list("abcd")


@pytest.mark.parametrize("per", ["token", "unit", "group"])
@pytest.mark.parametrize("loss", ["ppo", "gspo"])
@pytest.mark.parametrize("kl", [0.0, 0.5])
def test_the_update_is_the_same_however_it_is_cut(loss: str, per: str, kl: float) -> None:
    """Down to micro-batches of one row, in which no unit is whole: those take two passes, with the same gradient."""
    o = objective(loss, per, kl)
    threads, units, advantage = many_rows()
    whole, total = gradient_of_update(o, threads, units, advantage, 10**6)
    for max_tokens in (1, 10, 40):
        micros = cut_of(o, threads, units, max_tokens).micros
        assert len(micros) >= {1: 12, 10: 7, 40: 3}[max_tokens]
        assert any(not micro.whole for micro in micros) == (loss == "gspo" and max_tokens < 20)
        found, found_total = gradient_of_update(o, threads, units, advantage, max_tokens)
        assert torch.allclose(found, whole, atol=1e-6)
        assert found_total == pytest.approx(total, abs=1e-6)
    assert whole.abs().max() > 1e-3


def test_a_unit_larger_than_a_micro_batch_never_passes_its_limit() -> None:
    threads = [thread(f"t{i}", see(1, 2), act(f"a{i}", *range(1, 9))) for i in range(20)]
    o = objective("gspo", "group")
    cut = cut_of(o, threads, [unit("u", *[f"a{i}" for i in range(20)])], 50)
    assert max(len(micro.rows) * 10 for micro in cut.micros) <= 50


def test_an_importance_correction_and_a_clip_act_in_two_passes_as_in_one() -> None:
    o = replace(objective("gspo", "group"), policy=PolicyTerm("unit", (0.001, 0.001), over=objective("gspo", "group").policy.over))  # type: ignore[union-attr]
    threads, units, advantage = many_rows()
    results = []
    for max_tokens in (10**6, 10):
        policy = Bigram()
        learner = learner_of(o, policy)
        of = scored(o, cut_of(o, threads, units), advantage, policy)
        off = replace(of.batch, sampler_logprob=of.batch.old_logprob - 0.2)
        metrics = learner.update([replace(of, batch=off, minibatches=cut_of(o, threads, units, max_tokens).minibatches)])
        results.append((learner.backend.seen[0], metrics["clip_fraction"], metrics["ratio"]))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-6)
    assert results[0][1:] == pytest.approx(results[1][1:])
    assert 0 < results[0][1] < 1


def test_the_gradient_of_gspo_is_that_of_one_ratio_per_unit() -> None:
    threads, units, advantage = many_rows()
    o = objective("gspo", "group")
    gradient, _ = gradient_of_update(o, threads, units, advantage, 10**6)
    policy, cut = Bigram(), scored(o, cut_of(o, threads, units), advantage, Bigram())
    batch, whole = cut.batch, Padded.of(cut.batch, range(cut.batch.rows), torch.device("cpu"))
    logprob, _ = policy(whole)
    expected = torch.zeros(())
    for number in range(12):
        of_unit = torch.from_numpy(batch.unit[whole.flat] == number)
        old = torch.from_numpy(batch.old_logprob[whole.flat]).float()
        ratio = torch.exp((logprob - old)[of_unit].mean())
        expected = expected - torch.minimum(ratio * (a := batch.advantage[whole.flat][of_unit][0]), ratio.clamp(0.8, 1.2) * a) / 6
    expected.backward()
    assert policy.table.grad is not None
    assert torch.allclose(gradient, policy.table.grad, atol=1e-6)


def loss_of_two_groups(rollouts: dict[str, int]) -> float:
    """One unit with advantage 1 in each of two groups: what DECOR's eq. 4 sums up, at a ratio of 1."""
    threads = [thread(name, see(1), act(name, 2, 3)) for name in "ab"]
    units = [unit(f"u{name}", name, group=name) for name in "ab"]
    silent = [unit(f"s{name}{i}", "gone", group=name) for name, count in rollouts.items() for i in range(count - 1)]
    o = objective("gspo", "group")
    learner = learner_of(o, Bigram())
    of = learner.score(cut_of(o, threads, units, of=silent))
    batch = of.batch.with_actions("advantage", dict.fromkeys("ab", np.ones(2)))
    metrics = learner.update([replace(of, batch=replace(batch, sampler_logprob=batch.old_logprob))])
    loss: float = metrics["loss"]
    return loss


def test_the_loss_is_the_mean_over_rollouts_and_questions() -> None:
    assert loss_of_two_groups({"a": 8, "b": 8}) == pytest.approx(-(1 / 8 + 1 / 8) / 2)


def test_the_loss_is_the_mean_over_questions_whose_groups_differ_in_size() -> None:
    assert loss_of_two_groups({"a": 8, "b": 2}) == pytest.approx(-(1 / 8 + 1 / 2) / 2)


def test_every_epoch_and_the_scoring_run_in_one_cut() -> None:
    """What the shape of a batch does to its last bits must be the same on both sides of a ratio."""
    passes: list[tuple[int, ...]] = []

    class Noting(Gradients):
        def forward(self, slot: str, rows: Padded, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
            passes.append(tuple(rows.flat.tolist()))
            return super().forward(slot, rows, temperature)

    o = replace(objective("gspo", "group"), minibatches=2, epochs=3)
    threads, units, advantage = many_rows()
    learner: Any = Learner((o,), CPU, Noting(Bigram()), 0, max_tokens=60)  # type: ignore[arg-type]
    of = learner.score(cut_of(o, threads, units, 60))
    batch = of.batch.with_actions("advantage", {action: np.array(numbers) for action, numbers in advantage.items()})
    of, first = replace(of, batch=replace(batch, sampler_logprob=batch.old_logprob)), list(passes)
    passes.clear()
    learner.update([of])
    assert len(first) > 2
    assert passes == first * 3
