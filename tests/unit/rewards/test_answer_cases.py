"""Every edge case under every published rule, to the last digit; and SQuAD's against another implementation, where there is one."""

from __future__ import annotations

import pytest

from rolecast.rewards.text import ABSTENTION, OURS, RULES, exact_match, normalize, token_f1
from tests.answer_cases import CASES, SCRIPTS, Case


def test_there_are_enough_of_them_and_each_is_another_one() -> None:
    assert len(CASES) >= 200
    assert len({(case.prediction, case.golds) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.prediction!r} for {case.golds!r}")
def test_metrics_are_what_the_script_says(case: Case, script: str) -> None:
    rules = RULES[script]
    assert (exact_match(case.prediction, case.golds, rules), token_f1(case.prediction, case.golds, rules)) == case.expected[script]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.prediction!r} for {case.golds!r}")
def test_ours_are_hotpotqas_unless_somebody_abstains(case: Case) -> None:
    texts = [text for text in (case.prediction, *case.golds) if text is not None]
    em, f1 = case.expected["hotpotqa"]
    found = (exact_match(case.prediction, case.golds, OURS), token_f1(case.prediction, case.golds, OURS))
    assert found == ((em, em) if ABSTENTION in map(normalize, texts) else (em, f1))


def test_torchmetrics_says_the_same_of_squad() -> None:
    squad = pytest.importorskip("torchmetrics.functional.text").squad
    for number, case in enumerate(CASES):
        if case.prediction is None or not case.golds:
            continue  # which it does not take
        answers = {"answer_start": [0] * len(case.golds), "text": list(case.golds)}
        found = squad([{"prediction_text": case.prediction, "id": str(number)}], [{"answers": answers, "id": str(number)}])
        em, f1 = case.expected["squad"]
        assert (float(found["exact_match"]), float(found["f1"])) == pytest.approx((100 * em, 100 * f1), abs=1e-4), case
