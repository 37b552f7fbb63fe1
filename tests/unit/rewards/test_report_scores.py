"""Scores of long answers, worked by hand."""

from __future__ import annotations

import pytest

from rolecast.rewards.reports import met, race, share_of
from rolecast.types import RubricItem

ITEMS = (RubricItem("a", 0.3, "insight"), RubricItem("b", 0.1, "insight"), RubricItem("c", 0.6, "readability"))


def test_a_report_is_held_against_the_reference_by_weight_and_dimension() -> None:
    found = race(ITEMS, [(1.0, 0.5), (0.0, 1.0), (0.5, 0.5)])
    # The text: .3 + 0 + .3 = .6; the reference: .15 + .1 + .3 = .55. Of insight .3 and .25, of readability .3 and .3.
    assert found == pytest.approx({"": 0.6 / 1.15, "insight": 0.3 / 0.55, "readability": 0.5})


def test_a_reference_that_is_met_alike_gives_a_half_and_nothing_gives_0() -> None:
    assert race(ITEMS, [(0.25, 0.25)] * 3) == pytest.approx({"": 0.5, "insight": 0.5, "readability": 0.5})
    assert race(ITEMS, [(0.0, 0.0)] * 3) == {"": 0.0, "insight": 0.0, "readability": 0.0}
    assert race([RubricItem("a")], [(1.0, 0.0)]) == {"": 1.0}  # a rubric without dimensions
    assert share_of(0.0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("scored", "score"),
    [
        ([(2.0, 1.0), (2.0, 0.5)], 0.75), ([(5.0, 1.0), (-2.0, 0.5)], 0.8), ([(5.0, 0.0), (-2.0, 1.0)], 0.0), ([(-2.0, 1.0)], 0.0), ([], 0.0),
    ],
)  # fmt: skip
def test_what_should_not_be_said_takes_away(scored: list[tuple[float, float]], score: float) -> None:
    assert met(scored) == pytest.approx(score)
