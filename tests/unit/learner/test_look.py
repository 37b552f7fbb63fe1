"""What an update tells of the tokens of a few actions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rows import THREADS, UNITS, Alone, cut_of, objective
from torch import Tensor, nn

from rolecast.credit import Floats
from rolecast.learner.cut import Cut
from rolecast.learner.learner import Learner
from rolecast.learner.look import TokenNumbers
from rolecast.learner.ranks import Ranks

CPU: Any = SimpleNamespace(device=torch.device("cpu"))
# Ten tokens, all as likely: π is 1/10, and the sampler said exp(-token/10), so a token's ratio is exp(token/10)/10.
RATIOS = {4: 0.149182, 5: 0.164872, 7: 0.201375, 9: 0.245960, 1: 0.110517, 2: 0.122140}
LN_10 = 2.302585


class Uniform(nn.Module):
    """A backend that moves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(10))

    def forward(self, slot: str, rows: Any, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(self.table, -1)
        return logprobs[rows.target], torch.full((len(rows.row),), LN_10)

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()

    def step(self, numbers: dict[str, int]) -> dict[str, float]:
        return dict.fromkeys(numbers, 0.0)

    def rate(self, slot: str, number: int) -> float:
        return 0.0


def learner_of(ranks: Ranks | None = None) -> Learner:
    return Learner((objective("ppo", "token"),), CPU, Uniform(), 0, ranks=ranks or Ranks())  # type: ignore[arg-type]


def filled(learner: Learner) -> Cut:
    of = learner.score(cut_of(objective("ppo", "token"), THREADS, UNITS))
    return replace(of, batch=of.batch.with_actions("advantage", {"a": np.array([0.5, 0.5]), "b": np.array([-1.0]), "c": np.zeros(3)}))


def test_the_tokens_of_actions_that_are_looked_at_have_their_numbers() -> None:
    learner = learner_of()
    learner.look = frozenset({"a", "c", "d"})  # d is in no unit
    learner.update([filled(learner)])
    told = learner.take_looked()
    assert sorted(told) == ["a", "c"]
    assert told["a"].advantage == (0.5, 0.5)
    assert told["a"].ratio == pytest.approx([RATIOS[4], RATIOS[5]], abs=1e-6)
    assert told["c"].ratio == pytest.approx([RATIOS[9], RATIOS[1], RATIOS[2]], abs=1e-6)
    assert told["c"].entropy == pytest.approx([LN_10] * 3)


def test_who_took_the_numbers_has_to_look_again() -> None:
    learner = learner_of()
    learner.look = frozenset({"a"})
    learner.update([filled(learner)])
    assert set(learner.take_looked()) == {"a"}
    learner.update([filled(learner)])
    assert learner.take_looked() == {}


def test_ranks_put_together_what_each_of_them_saw() -> None:
    """The one micro-batch is the first rank's, and the second one adds nothing to it."""
    shares: list[Floats] = []

    class Kept(Alone):
        def sum(self, array: Floats) -> Floats:
            shares.append(array)
            return array

    found: list[dict[str, TokenNumbers]] = []
    for rank in range(2):
        learner = learner_of(Kept(rank, 2))
        learner.look = frozenset({"b"})
        learner.update([filled(learner_of())])
        found.append(learner.take_looked())
    looks = [share for share in shares if share.shape == (3, 1)]
    assert [share[2].tolist() for share in looks] == [[1.0], [0.0]]
    assert looks[1].tolist() == [[0.0]] * 3
    assert (sorted(found[0]), found[1]) == (["b"], {})
    assert found[0]["b"].ratio == pytest.approx([RATIOS[7]], abs=1e-6)
