"""When evidence is sufficient, and when nobody can say."""

from __future__ import annotations

import pytest

from rolecast.rewards.evidence import contains, holds_passages, sufficient, tells
from rolecast.types import Gold, Question


def asked(*answers: str, text: str = "Who is it?", type: str = "chain", passages: tuple[str, ...] = ()) -> Question:
    return Question("q", text, Gold(answers, passages=passages), type)


@pytest.mark.parametrize(
    ("texts", "answers", "found"),
    [
        (["The mentor is Kel Dax."], ("Kel Dax",), True),
        (["the mentor is KEL   DAX!"], ("Kel Dax",), True),
        (["Kel Daxon is the mentor."], ("Kel Dax",), False),  # a longer name is another name
        (["The mentor is Mikel Dax."], ("Kel Dax",), False),
        (["The mentor is Kel.", "Dax is a town."], ("Kel Dax",), False),  # one document has it, or none
        (["It was 1912."], ("191",), False),
        (["Born in New York."], ("NYC", "New York"), True),  # any gold answer
        ([], ("Kel Dax",), False),
    ],
)
def test_an_answer_is_found_on_word_boundaries_in_one_document(texts: list[str], answers: tuple[str, ...], found: bool) -> None:
    assert contains(texts, asked(*answers)) is found


@pytest.mark.parametrize(
    "question",
    [
        asked("yes"),
        asked("No."),
        asked("Kel Dax", type="comparison"),
        asked("Kel Dax", type="bridge_comparison"),
        asked("Kel Dax", text="Who is older, Kel Dax or Zen Kol?"),
        asked("The"),  # no word is left of it
        asked(),
    ],
)
def test_words_say_nothing_about_yes_no_and_comparisons(question: Question) -> None:
    assert not tells(question)
    assert contains(["yes no Kel Dax"], question) is None


def test_gold_passages_must_all_be_there() -> None:
    question = asked("x", passages=("a", "b"))
    assert [holds_passages(ids, question) for ids in (["b", "c", "a"], ["a"], [])] == [True, False, False]
    assert holds_passages(["a"], asked("x")) is None


def test_passages_are_asked_where_words_say_nothing() -> None:
    compared = asked("yes", passages=("a", "b"))
    assert [sufficient(["yes"], ids, compared) for ids in (["a", "b"], ["a"])] == [True, False]
    assert sufficient(["yes"], ["a"], asked("yes")) is None
    assert sufficient(["Kel Dax"], [], asked("Kel Dax", passages=("a",))) is True  # words go first
