"""Shares over answers that might have been abstentions, by hand."""

from __future__ import annotations

import pytest

from rolecast.rewards.abstention import Answered, shares


def test_hand_worked() -> None:
    answers = [
        Answered(1, 0, 1),  # answered, rightly and right
        Answered(1, 0, 0),
        Answered(1, 1, 0, 1),  # should have answered: forced, it was right
        Answered(0, 1, 0, 0),
        Answered(0, 0, 1),  # a lucky guess
        Answered(None, 0, 0),
    ]
    assert shares(answers) == {
        "abstention": pytest.approx(2 / 6),
        "abstain_accuracy": pytest.approx(3 / 5),
        "selective_accuracy": pytest.approx(2 / 4),
        "non_abstention_recall": pytest.approx(2 / 3),
        "forced_accuracy": pytest.approx(1 / 2),
    }


def test_a_share_over_nothing_is_left_out() -> None:
    assert shares([]) == {}
    assert shares([Answered(None, 1, 0)]) == {"abstention": 1}
    assert shares([Answered(0, 1, 0)]) == {"abstention": 1, "abstain_accuracy": 1}
