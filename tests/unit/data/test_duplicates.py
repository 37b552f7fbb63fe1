"""Which questions ask the same: by hand, and the join against a comparison of all pairs."""

from __future__ import annotations

import random

import pytest

from rolecast.data.duplicates import Seen, common, shingles
from rolecast.types import Gold, Question, RubricItem

LONG = "In which year was the director of the film that Ada Quill wrote in Hask born"


def asked(id: str, text: str, *answers: str) -> Question:
    return Question(id, text, Gold(answers))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (("Who dug it?", "me"), ("who dug IT", "you"), "exact"),
        (("???", "a"), ("???", "a"), "exact"),
        (("???", "a"), ("!!!", "a"), None),
        ((f"{LONG}?", "1899"), (f"{LONG} there?", "in 1899", "1899"), "near"),
        ((f"{LONG}?", "1899"), (f"{LONG} there?", "1900"), None),
        ((LONG.replace("born", "married"), "yes"), (LONG, "yes"), None),
        ((LONG.replace("born", "married"), "Kel"), (LONG, "Kel"), "near"),
        (("Is Hask older?", "yes"), ("older is Hask", "yes"), None),
        (("Who dug it in Hask?", "me"), ("Who paid it in Senn?", "me"), None),
    ],
)
def test_what_asks_the_same(first: tuple[str, ...], second: tuple[str, ...], found: str | None) -> None:
    seen = Seen()
    seen.add(asked("1", *first))
    assert seen.repeats(asked("2", *second)) == (None if found is None else (found, "1"))


def test_near_ones_may_be_let_through() -> None:
    seen = Seen(near=1.5)
    seen.add(asked("1", f"{LONG}?", "1899"))
    assert seen.repeats(asked("2", f"{LONG} there?", "1899")) is None
    assert seen.repeats(asked("2", LONG, "1899")) == ("exact", "1")


def test_questions_with_a_rubric_are_compared_by_their_texts() -> None:
    seen = Seen()
    seen.add(Question("1", f"{LONG}?", Gold((), rubric=(RubricItem("a"),))))
    assert seen.repeats(Question("2", f"{LONG} there?", Gold((), rubric=(RubricItem("b"),)))) == ("near", "1")


@pytest.mark.parametrize("near", [0.5, 0.65, 0.8, 1.0])
def test_the_join_finds_what_comparing_all_pairs_finds(near: float) -> None:
    rng = random.Random(7)
    words = [f"w{n}" for n in range(12)]
    questions = [asked(str(n), " ".join(rng.choices(words, k=rng.randint(1, 7))), "gold") for n in range(250)]
    seen = Seen(near, common(questions))
    found, expected = 0, 0
    before: list[Question] = []
    for question in questions:
        own = shingles(question.text)
        pairs = [other for other in before if len(own & shingles(other.text)) / len(own | shingles(other.text)) >= near - 1e-12]
        assert (seen.repeats(question) is not None) == bool(pairs), question.text
        found, expected = found + (seen.repeats(question) is not None), expected + bool(pairs)
        seen.add(question)
        before.append(question)
    assert 0 < expected < len(questions)
