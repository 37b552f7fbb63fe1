"""Reading replies: exactly the blocks that were asked for, in one reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.tags import blocks, tagged, trim

PLAIN = st.text(alphabet=st.sampled_from("ab ./\n"), max_size=12)


@pytest.mark.parametrize(
    ("text", "think", "search"),
    [
        ("<think>a</think><search>b</search>", "a", "b"),
        ("<think> a </think> <search> b\n</search>", "a", "b"),
        ("\n <think>a</think>\n\n<search>b</search> \n", "a", "b"),
        ("<think></think><search></search>", "", ""),
        ("<think>two\nlines</think><search>b < c > d</search>", "two\nlines", "b < c > d"),
        ("<think>a <information> b</think><search>c</search>", "a <information> b", "c"),
    ],
)
def test_well_formed(text: str, think: str, search: str) -> None:
    assert blocks(text, "think", "search") == {"think": think, "search": search}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "b",
        "<search>b</search>",
        "<think>a</think>",
        "<think>a</think><search>b",
        "<think>a<search>b</search>",
        "<search>b</search><think>a</think>",
        "<think>a</think><search>b</search> thanks",
        "Sure: <think>a</think><search>b</search>",
        "<think>a</think> and <search>b</search>",
        "<think>a</think><answer>b</answer>",
        "<think>a</think><search>b</search><search>c</search>",
        "<think>a</think><think>a</think><search>b</search>",
        "<think>a <search>b</search></think><search>c</search>",
        "<think>a</think><search>b <think>c</think></search>",
        "<think>a </think> b</think><search>c</search>",
        "<think>a</think><search>b</search></search>",
        "<THINK>a</THINK><SEARCH>b</SEARCH>",
        "<think >a</think><search>b</search>",
    ],
)
def test_anything_else_is_a_fault(text: str) -> None:
    assert blocks(text, "think", "search") is None


def test_order_is_that_of_the_arguments() -> None:
    assert blocks("<search>b</search><think>a</think>", "search", "think") == {"search": "b", "think": "a"}


@given(PLAIN, PLAIN)
def test_what_was_tagged_is_read_back(think: str, answer: str) -> None:
    text = tagged("think", think) + tagged("answer", answer)
    assert blocks(text, "think", "answer") == {"think": think.strip(), "answer": answer.strip()}


def test_tagged_has_one_space_before_words_and_none_where_there_are_none() -> None:
    assert tagged("search", "mentor of Brol Tan") == "<search> mentor of Brol Tan</search>"
    assert tagged("filter", "") == "<filter></filter>"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<answer>b</answer>", "<answer>b</answer>"),
        ("<answer>b</answer>\n<", "<answer>b</answer>"),
        ("<search>a</search> <answer>b</answer>", "<search>a</search>"),
        ("<answer>b</answer> <search>a</search>.", "<answer>b</answer>"),
        ("<answer>b", "<answer>b"),
        ("", ""),
    ],
)
def test_trim_ends_at_the_first_stop_string(text: str, kept: str) -> None:
    assert trim(text, ("</search>", "</answer>")) == kept


def test_trim_without_stops_leaves_the_text() -> None:
    assert trim("a</search>b", ()) == "a</search>b"
