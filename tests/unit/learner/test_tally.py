"""What is told of an update is read once, in the order in which it was told, and only of items that act."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolecast.learner.tally import Tally, mean_of


def test_numbers_are_weighted_means_in_the_order_of_telling() -> None:
    tally = Tally()
    tally.add("loss", torch.tensor(1.0, requires_grad=True), 1.0)
    tally.items("ratio", torch.tensor([1.0, 2.0, 4.0]), ("p", "q"), np.array([0, 1, 1]))
    tally.read()
    tally.add("loss", 4.0, 2.0)
    tally.read()
    assert mean_of([tally.pairs]) == {"loss": 3.0, "ratio": pytest.approx(7 / 3), "p/ratio": 1.0, "q/ratio": 3.0}
    assert list(tally.pairs) == ["loss", "ratio", "p/ratio", "q/ratio"]


def test_items_that_do_not_act_are_no_part_of_a_mean_and_where_none_acts_there_is_none() -> None:
    tally, tags = Tally(), np.array([0, 0, 1])
    tally.items("ratio", torch.tensor([1.0, 2.0, 9.0]), ("p", "q"), tags, np.array([True, False, True]))
    tally.items("nll", torch.tensor([1.0, 2.0, 9.0]), ("p", "q"), tags, np.zeros(3, dtype=bool))
    tally.read()
    assert mean_of([tally.pairs]) == {"ratio": 5.0, "p/ratio": 1.0, "q/ratio": 9.0}


def test_nothing_is_kept_on_a_device_after_it_was_read() -> None:
    tally = Tally()
    tally.add("loss", torch.tensor(1.0))
    tally.read()
    tally.read()
    assert tally.pairs == {"loss": [(1.0, 1.0)]}
    assert not tally._told
