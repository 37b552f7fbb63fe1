"""Answer metrics against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.rewards.text import RULES, abstains, cover_exact_match, exact_match, normalize, token_f1

WORDS = st.lists(st.sampled_from(["red", "fox", "the", "a", "yes", "no", "unknown", "x.", "Örk", "-"]), max_size=5).map(" ".join)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Red Fox", "red fox"),
        ("an apple a day", "apple day"),
        ("theatre anagram", "theatre anagram"),
        ("U.S.A.", "usa"),
        ("well-known", "wellknown"),
        ("red\t\n  fox ", "red fox"),
        ("The, a: AN!", ""),
        ("ÖRK Zün", "örk zün"),
        ("Nuku’alofa", "nuku’alofa"),
        ("3,000", "3000"),
        ("", ""),
    ],
)
def test_normalize(text: str, normal: str) -> None:
    assert normalize(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("Vrek Stom", ["Vrek Stom"], 1),
        (" the VREK stom! ", ["Vrek Stom"], 1),
        ("Vrek", ["Vrek Stom"], 0),
        ("Vrek Stom Kal", ["Vrek Stom"], 0),
        ("Stom Vrek", ["Vrek Stom"], 0),
        ("cats", ["cat"], 0),
        ("USA", ["U.S.A.", "America"], 1),
        ("america", ["U.S.A.", "America"], 1),
        ("örk", ["ÖRK"], 1),
        ("ork", ["ÖRK"], 0),
        ("yes", ["Yes."], 1),
        ("yes", ["no"], 0),
        ("", ["Vrek"], 0),
        ("Vrek", [], 0),
        ("", [], 0),
    ],
)
def test_exact_match(prediction: str, golds: Sequence[str], expected: float) -> None:
    assert exact_match(prediction, golds) == expected


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("red fox", ["red fox"], 1),
        ("the red fox", ["Red fox."], 1),
        ("red fox", ["red fox jumps"], 0.8),  # P 2/2, R 2/3
        ("fox red", ["red fox"], 1),
        ("red red fox", ["red fox fox"], 2 / 3),  # one red and one fox in common, of three each
        ("red red red", ["red"], 0.5),  # P 1/3, R 1
        ("red red", ["red red fox"], 0.8),  # both reds count
        ("red fox", ["blue cat"], 0),
        ("red fox", ["blue cat", "fox", "red fox jumps high"], 2 / 3),  # 0, 2/3 and 4/6
        ("yes", ["yes"], 1),
        ("The yes!", ["yes"], 1),
        ("yes", ["no"], 0),
        ("yes it is", ["yes"], 0),
        ("yes", ["yes it is"], 0),
        ("no", ["no way", "no"], 1),
        ("noanswer", ["noanswer today"], 0),
        ("yes and no", ["no and yes"], 1),
        ("zün örk", ["Örk"], 2 / 3),
        ("", ["fox"], 0),
        ("the", ["fox"], 0),
        ("fox", ["the"], 0),
        ("fox", [], 0),
        ("", [], 0),
    ],
)
def test_token_f1(prediction: str, golds: Sequence[str], expected: float) -> None:
    assert token_f1(prediction, golds) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("it is Vrek Stom.", ["Vrek Stom"], 1),
        ("vrek stom", ["Vrek Stom"], 1),
        ("king of hill", ["the king of the hill"], 1),
        ("it is Vrek Stomp", ["Vrek Stom"], 0),
        ("it is Avrek Stom", ["Vrek Stom"], 0),
        ("Vrek and Stom", ["Vrek Stom"], 0),
        ("I know", ["no"], 0),
        ("no idea", ["no"], 1),
        ("red fox", ["cat", "fox"], 1),
        ("red fox", ["red fox jumps"], 0),
        ("", ["fox"], 0),
        ("fox", ["!!!"], 0),
        ("fox", [], 0),
    ],
)
def test_cover_exact_match(prediction: str, golds: Sequence[str], expected: float) -> None:
    assert cover_exact_match(prediction, golds) == expected


@pytest.mark.parametrize("metric", [exact_match, token_f1, cover_exact_match])
def test_no_answer_scores_zero_whatever_the_gold(metric: Callable[[str | None, Sequence[str]], float]) -> None:
    assert metric(None, ["The The"]) == metric(None, [""]) == metric(None, []) == 0
    assert metric("The Band", ["The Band"]) == 1


def test_two_answers_without_words_are_equal_and_share_none() -> None:
    """HotpotQA's rule; SQuAD's later script has 1."""
    assert (exact_match("", [""]), token_f1("", [""]), token_f1("", [""], RULES["squad"])) == (1, 0, 1)


@pytest.mark.parametrize("metric", [exact_match, token_f1, cover_exact_match])
@pytest.mark.parametrize(
    ("prediction", "golds", "right"),
    [
        ("unknown", ["unknown"], 1),
        (" The Unknown. ", ["unknown"], 1),
        ("unknown", ["Vrek Stom"], 0),
        ("unknown", ["yes"], 0),
        ("unknown", ["Unknown Vrek"], 0),  # not even in part
        ("Vrek Stom", ["unknown"], 0),
        ("unknown, or Vrek Stom", ["unknown"], 0),  # a guess beside it
        ("no", ["unknown"], 0),
        ("", ["unknown"], 0),
        (None, ["unknown"], 0),  # who says nothing abstains from nothing
    ],
)
def test_abstaining_is_right_where_there_is_no_answer_and_nowhere_else(
    metric: Callable[[str | None, Sequence[str]], float], prediction: str | None, golds: Sequence[str], right: float
) -> None:
    assert metric(prediction, golds) == right


@pytest.mark.parametrize(
    ("prediction", "abstained"), [("unknown", True), ("Unknown!", True), ("unknown Vrek", False), ("", False), (None, False)]
)
def test_who_abstains(prediction: str | None, abstained: bool) -> None:
    assert abstains(prediction) is abstained


@given(WORDS, st.lists(WORDS, max_size=3))
def test_the_three_metrics_agree_on_their_order(prediction: str, golds: list[str]) -> None:
    em, f1, cover = (metric(prediction, golds) for metric in (exact_match, token_f1, cover_exact_match))
    assert 0 <= f1 <= 1
    assert em <= cover
    assert em <= f1 or not normalize(prediction)


@given(WORDS, st.lists(WORDS, max_size=3), st.sampled_from(sorted(RULES)))
def test_what_is_normalised_away_changes_no_score(prediction: str, golds: list[str], name: str) -> None:
    rules = RULES[name]
    dressed = f"  THE {prediction.upper()} ! "
    for metric in (exact_match, token_f1, cover_exact_match):
        assert metric(dressed, golds, rules) == metric(prediction, golds, rules)


@given(st.text(max_size=12), st.sampled_from(sorted(RULES)))
def test_every_text_is_its_own_exact_match(text: str, name: str) -> None:
    rules = RULES[name]
    assert exact_match(text, [text], rules) == cover_exact_match(text, [text], rules) == 1
    assert token_f1(text, [text], rules) == (1 if rules.normalize(text) else rules.empty)


@given(st.text(max_size=12), st.lists(st.text(max_size=12), min_size=1, max_size=3), st.sampled_from(sorted(RULES)), st.text(max_size=12))
def test_another_gold_answer_lowers_no_score(prediction: str, golds: list[str], name: str, more: str) -> None:
    rules = RULES[name]
    for metric in (exact_match, token_f1, cover_exact_match):
        assert metric(prediction, golds, rules) <= metric(prediction, [*golds, more], rules)


@given(WORDS, WORDS)
def test_f1_is_symmetric(first: str, second: str) -> None:
    assert token_f1(first, [second]) == pytest.approx(token_f1(second, [first]))


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_f1_of_many_golds_is_the_best_of_each(prediction: str, golds: list[str]) -> None:
    assert token_f1(prediction, golds) == max(token_f1(prediction, [gold]) for gold in golds)
