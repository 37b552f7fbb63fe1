"""How M-ASK's replies are read: what is legal, and what is made of the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.methods.mask.replies import read_answer, read_plan, read_search, read_summary, read_update, spoken

TEXT = st.text(st.sampled_from("ab <>/123\nq"), max_size=30)


@pytest.mark.parametrize(
    ("text", "steps", "answer", "legal"),
    [
        ("<q1> a</q1><a1> b</a1><predicted_answer> c</predicted_answer>", [("a", "b")], "c", True),
        ("<q1>a</q1>\n<a1>b</a1>\n<q2>d</q2>\n<a2>unknown</a2>\n<predicted_answer>c</predicted_answer>\n", [("a", "b"), ("d", "unknown")], "c", True),
        ("Well. <q1>a</q1><a1>b</a1><predicted_answer>c</predicted_answer>", [("a", "b")], "c", False),
        ("<q1>a</q1><a1>b</a1>", [("a", "b")], "unknown", False),
        ("<q1>a</q1><a1>b</a1><predicted_answer></predicted_answer>", [("a", "b")], "unknown", False),
        ("<q1>a</q1><a1></a1><predicted_answer>c</predicted_answer>", [("a", "unknown")], "c", False),
        ("<q1></q1><a1>b</a1><predicted_answer>c</predicted_answer>", [], "c", False),
        ("<q2>a</q2><a2>b</a2><predicted_answer>c</predicted_answer>", [("a", "b")], "c", False),
        ("<q1>a</q1><a1>b</a1><q3>d</q3><a3>e</a3><predicted_answer>c</predicted_answer>", [("a", "b"), ("d", "e")], "c", False),
        ("<q1>a</q1><predicted_answer>c</predicted_answer>", [], "c", False),
        ("<predicted_answer>c</predicted_answer>", [], "c", False),
        ("<q1>a</q1><a1>b</a1><predicted_answer>c", [("a", "b")], "c", False),
        ("<q1>a</q1><a1>b</a1><q2>a</q2><a2>d</a2><predicted_answer>c</predicted_answer>", [("a", "b"), ("a", "d")], "c", False),
        ("c", [], "unknown", False),
        ("", [], "unknown", False),
    ],
)  # fmt: skip
def test_plans(text: str, steps: list[tuple[str, str]], answer: str, legal: bool) -> None:
    found = read_plan(text)
    assert ([(s.query, s.answer) for s in found.content.steps], found.content.answer, found.legal) == (steps, answer, legal)


@pytest.mark.parametrize(("count", "legal"), [(1, True), (5, True), (6, False)])
def test_a_plan_has_five_steps_at_most(count: int, legal: bool) -> None:
    steps = "".join(f"<q{n}>q {n}</q{n}><a{n}>unknown</a{n}>" for n in range(1, count + 1))
    found = read_plan(f"{steps}<predicted_answer>unknown</predicted_answer>")
    assert (len(found.content.steps), found.legal) == (count, legal)


@pytest.mark.parametrize(("count", "legal"), [(1, True), (75, True), (76, False)])
def test_evidence_has_75_words_at_most(count: int, legal: bool) -> None:
    found = read_summary(f"<evidence> {'word ' * count}</evidence>")
    assert (len(found.content.split()), found.legal) == (count, legal)


@pytest.mark.parametrize(
    ("text", "query", "legal"),
    [
        ("<search> a b</search>", "a b", True),
        ("\n<search>a < b</search>\n", "a < b", True),
        ("<end>", None, True),
        (" <end>\n", None, True),
        ("<end> now", None, False),
        ("done. <end>", None, False),
        ("<search></search>", None, False),
        ("", None, False),
        ("a b", "a b", False),
        ("<search> a b", "a b", False),
        ("I ask: <search>a b</search>", "a b", False),
        ("<search>a</search><search>b</search>", "a", False),
        ("<search>a <end>", "a", False),
        ("a <end>", None, False),
    ],
)
def test_searches(text: str, query: str | None, legal: bool) -> None:
    assert (read_search(text).content, read_search(text).legal) == (query, legal)


@pytest.mark.parametrize(
    ("text", "evidence", "legal"),
    [
        ("<evidence> A is B.</evidence>", "A is B.", True),
        ("<evidence>A <b>is</b> B.</evidence>", "A <b>is</b> B.", True),
        ("<evidence>nothing</evidence>", "nothing", True),
        ("<evidence></evidence>", "nothing", False),
        ("", "nothing", False),
        ("A is B.", "A is B.", False),
        ("So: <evidence>A is B.</evidence>", "A is B.", False),
        ("<evidence>A is B.", "A is B.", False),
    ],
)
def test_summaries(text: str, evidence: str, legal: bool) -> None:
    assert (read_summary(text).content, read_summary(text).legal) == (evidence, legal)


@pytest.mark.parametrize(
    ("text", "number", "legal"),
    [
        ("<Update>t1</Update>", 1, True),
        ("<Update> t3 </Update>", 3, True),
        ("<Add>t4</Add>", 4, True),
        ("<Update>t4</Update>", 4, False),  # nothing stands there
        ("<Update>t0</Update>", 4, False),
        ("<Add>t2</Add>", 4, False),  # not the next one
        ("<Add>t5</Add>", 4, False),
        ("<update>t1</update>", 4, False),
        ("<Update>1</Update>", 4, False),
        ("<Update>t2</Add>", 4, False),
        ("<Update>t2", 4, False),
        ("<Update>t2 with A is B</Update>", 4, False),
        ("I say <Update>t2</Update>", 4, False),
        ("t2", 4, False),
        ("", 4, False),
        ("<Update>t" + "9" * 9000 + "</Update>", 4, False),
    ],
)
def test_updates(text: str, number: int, legal: bool) -> None:
    assert (read_update(text, 3).content, read_update(text, 3).legal) == (number, legal)


def test_of_no_steps_every_update_adds_the_first() -> None:
    assert [(read_update(text, 0).content, read_update(text, 0).legal) for text in ("<Add>t1</Add>", "<Update>t1</Update>")] == [
        (1, True), (1, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer", "legal"),
    [
        ("<predicted_answer> Kel Dax</predicted_answer>", "Kel Dax", True),
        ("<predicted_answer></predicted_answer>", "", False),
        ("Kel Dax", "Kel Dax", False),
        ("It is <predicted_answer>Kel Dax</predicted_answer>", "Kel Dax", False),
        ("<predicted_answer>Kel Dax", "Kel Dax", False),
        ("", "", False),
    ],
)
def test_answers(text: str, answer: str, legal: bool) -> None:
    assert (read_answer(text).content, read_answer(text).legal) == (answer, legal)


@given(TEXT, st.integers(0, 5))
def test_whatever_is_said_can_be_read(text: str, steps: int) -> None:
    for tag in ("search", "evidence", "predicted_answer"):
        for said in (text, f"<{tag}>{text}", f"<{tag}>{text}</{tag}>"):
            read_plan(said), read_search(said), read_answer(said)
            assert read_summary(said).content
    for said in (text, f"<Update>{text}</Update>", f"<Update>t{text}", f"<Add>t{steps + 1}</Add>{text}"):
        assert 1 <= read_update(said, steps).content <= steps + 1


@given(TEXT.map(str.strip).filter(lambda text: text and "<" not in text))
def test_a_legal_content_is_read_word_for_word(text: str) -> None:
    assert read_search(f"<search>{text}</search>").content == text
    assert read_summary(f"<evidence> {text}</evidence>").content == text
    assert read_answer(f"<predicted_answer>{text} </predicted_answer>").content == text


def test_thoughts_are_left_out_at_the_beginning_only() -> None:
    assert spoken("<think> a</think>\n<end>") == "\n<end>"
    assert spoken("<end><think> a</think>") == "<end><think> a</think>"
    assert spoken("<think> a") == "<think> a"
