"""The extractive condenser: facts in their shortest form, none inferred, none lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import EMPLOYER, MAYOR, MENTOR, RIVAL

from rolecast.methods.decor.condense import condense
from rolecast.world.grammar import RELATIONS, Fact, facts_in
from rolecast.world.names import draw_name

FACTS = st.lists(
    st.builds(
        lambda seed, relation: Fact(draw_name(random.Random(seed)), relation, draw_name(random.Random(seed + 1))),
        st.integers(0, 10**6), st.sampled_from(sorted(RELATIONS)),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def test_sentences_become_atoms_in_their_order() -> None:
    assert condense(f"{MENTOR.sentence} {EMPLOYER.sentence}") == "mentor of Brol Tan: Vrek Stom. employer of Vrek Stom: Kel Dax."


def test_a_fact_is_said_once() -> None:
    assert condense(f"{MENTOR.sentence} {RIVAL.sentence} {MENTOR.sentence} {MENTOR.atom}") == f"{MENTOR.atom} {RIVAL.atom}"


@pytest.mark.parametrize("text", ["", "Nothing of use.", "It rained in 1921, and nobody came"])
def test_text_without_a_readable_fact_is_kept(text: str) -> None:
    assert condense(text) == text


@given(FACTS)
def test_no_fact_is_lost_or_added_and_condensing_again_changes_nothing(facts: list[Fact]) -> None:
    once = condense(" ".join(fact.sentence for fact in facts))
    assert facts_in(once) == list(dict.fromkeys(facts))
    assert condense(once) == once
    assert len(once) < len(" ".join(fact.sentence for fact in dict.fromkeys(facts)))


def test_what_it_cannot_read_is_kept_word_for_word_and_once() -> None:
    odd = "In 1921 the mayor of Dral Vim is Zen Kol."
    assert condense(f"{MENTOR.sentence} {odd} Nobody came. {odd}") == f"{MENTOR.atom} {odd} Nobody came."
    assert condense(f"{MENTOR.sentence.rstrip('.')}\n{RIVAL.sentence}") == f"{MENTOR.sentence.rstrip('.')}\n{RIVAL.sentence}"


def test_a_last_fact_without_its_full_stop_is_kept() -> None:
    assert EMPLOYER.object in condense(f"{MENTOR.sentence} {EMPLOYER.sentence.rstrip('.')}")


def test_a_sentence_that_it_cannot_read_is_kept_beside_one_that_it_can() -> None:
    assert "1921" in condense(f"{MAYOR.sentence} She took office in 1921.")
