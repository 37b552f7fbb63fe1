"""DAC's figures by hand, and its alarm on planted rows."""

from __future__ import annotations

from typing import Any

import pytest
from dac_episodes import FIRST, OTHER, RIGHT, SECOND, STOP, UNKNOWN, dac, episode

from rolecast.methods.dac.monitor import STEPS
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Question


def test_the_figures_of_a_training_step(renderer: Renderer) -> None:
    """Two episodes of three answers each. One has all facts: right, wrong, abstained; its noisy ones right, wrong, wrong. The other lacks
    one: two abstain, one guesses."""
    first, _, _ = episode(
        renderer, [FIRST, SECOND, STOP], {"": RIGHT, "sample=1": OTHER, "sample=2": UNKNOWN, "noisy=0": RIGHT, "*": OTHER}
    )
    second, _, _ = episode(renderer, [FIRST, STOP], {"*": UNKNOWN, "sample=1": OTHER}, member=1)
    found = dac().diagnostics([first, second])
    assert found == {
        "abstention": pytest.approx(3 / 6),
        "abstain_accuracy": pytest.approx(4 / 6),
        "selective_accuracy": pytest.approx(1 / 3),
        "non_abstention_recall": pytest.approx(2 / 3),
        "retrieval_em": pytest.approx(1 / 2),
        "string_false_positives": 0.0,
        "unknown_sufficiency": 0.0,
        "w_insufficient": pytest.approx(3 / 9),
        "w_hard": pytest.approx(3 / 9),
        "c_hard": pytest.approx(1 / 3),
    }


@pytest.mark.parametrize(("abstention", "key"), [("train", "abstaining"), ("always", "forced")])
def test_the_figures_of_an_evaluation_pair_both_prompts(renderer: Renderer, abstention: str, key: str) -> None:
    """It abstains on the first, wrongly, and is right when it has to answer; on the second it answers."""
    allowed, forced = (key, "") if key == "abstaining" else ("", key)
    method = dac(abstention=abstention)
    played = [
        episode(renderer, [FIRST, SECOND, STOP], {"*": "", allowed: said, forced: RIGHT}, method, phase="eval", member=m)[0]
        for m, said in enumerate((UNKNOWN, OTHER))
    ]
    found = method.diagnostics(played)
    assert found == {
        "abstention": 0.5, "abstain_accuracy": 0.5, "selective_accuracy": 0.0, "non_abstention_recall": 0.5, "forced_accuracy": 1.0,
        "retrieval_em": 1.0, "unknown_sufficiency": 0.0,
    }  # fmt: skip


def test_words_that_stand_elsewhere_are_false_positives(renderer: Renderer) -> None:
    """The answer's words are found with the second fact; the first is missing."""
    t, _, _ = episode(renderer, [SECOND, STOP], {"*": RIGHT})
    found = dac().diagnostics([t])
    assert (found["retrieval_em"], found["string_false_positives"]) == (1, 1)


def test_nothing_is_told_of_nothing(renderer: Renderer) -> None:
    assert dac().diagnostics([]) == {}
    t, _, _ = episode(renderer, [FIRST], {"*": RIGHT}, max_context=50)
    assert (t.status, dac().diagnostics([t])) == ("length", {})


def test_an_evaluation_where_nobody_may_abstain_has_no_figures_of_it(renderer: Renderer) -> None:
    t, _, _ = episode(renderer, [FIRST, SECOND, STOP], {"*": RIGHT}, dac(abstention="never"), phase="eval")
    assert dac(abstention="never").diagnostics([t]) == {"retrieval_em": 1.0, "unknown_sufficiency": 0.0}


def row(step: int, insufficient: float, hard: float, right: float) -> dict[str, Any]:
    return {"step": step, "method/w_insufficient": insufficient, "method/w_hard": hard, "method/c_hard": right}


BAD, EVEN, GOOD = (0.3, 0.4, 0.5), (0.2, 0.4, 0.5), (0.1, 0.4, 0.5)


@pytest.mark.parametrize(
    ("rows", "warns"),
    [
        ([BAD] * STEPS, True),
        ([BAD] * (STEPS - 1), False),
        ([GOOD, *[BAD] * STEPS], True),
        ([*[BAD] * STEPS, GOOD], False),
        ([*[BAD] * 10, EVEN, *[BAD] * 10], False),  # where both weigh the same, both are equilibria
        ([(0.01, 0.0, 0.0)] * STEPS, True),  # without augmentation nothing weighs against it
        ([], False),
    ],
)
def test_the_alarm(rows: list[tuple[float, float, float]], warns: bool) -> None:
    found = dac().alarms([row(step, *numbers) for step, numbers in enumerate(rows)])
    assert set(found) == ({"over_abstention"} if warns else set())
    if warns:
        assert "0.5 " not in found["over_abstention"]
        assert "set method.augmentation to true" in found["over_abstention"]
        assert "\n" not in found["over_abstention"]


def test_rows_without_the_figures_are_passed_over() -> None:
    rows = [{"step": 0, "dev/em": 0.1}, *[row(step, *BAD) for step in range(1, 11)], {"step": 11, "idle": 1.0}]
    assert dac().alarms(rows) == {}
    assert dac().alarms([*rows, *[row(step, *BAD) for step in range(12, 22)]])


def test_questions_without_gold_passages_have_no_false_positives(renderer: Renderer) -> None:
    question = Question("q", "Who?", Gold(("Kel Dax",)))
    t, _, _ = episode(renderer, [SECOND, STOP], {"*": RIGHT}, question=question)
    found = dac().diagnostics([t])
    assert found["retrieval_em"] == 1
    assert "string_false_positives" not in found
