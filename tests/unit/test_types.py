"""What the records themselves promise."""

from __future__ import annotations

import copy

from rolecast.types import Passage


def test_a_recorded_state_shares_its_passages() -> None:
    passage = Passage("p", "T", "text", 0.5)
    state = copy.deepcopy({"documents": [passage], "queries": ["q"]})
    assert state["documents"] == [passage]
    assert state["documents"][0] is passage
