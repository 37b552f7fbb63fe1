"""Pages of wrong answers: every one of them, once, and nothing of them runs."""

from __future__ import annotations

import json
import re
from typing import Any

from rolecast.evaluation.attribution import ERRED
from rolecast.evaluation.pages import A_PAGE
from rolecast.evaluation.wrong_pages import first_wrong, wrong, wrong_pages


def row(n: int, em: float | None) -> dict[str, Any]:
    return {"id": f"q{n}", "question": f"Question {n}?", "answer": "a", "golds": ["b", "c"], "scores": {"em": em, "f1": 0.25}}


def test_every_wrong_answer_is_on_one_page() -> None:
    rows = [row(n, (0.0, 1.0, None)[n % 3]) for n in range(3 * (2 * A_PAGE + 1))]
    pages = dict(wrong_pages("Wrong", "rl", rows, sum(map(wrong, rows))))
    assert list(pages) == ["rl-0001.html", "rl-0002.html", "rl-0003.html"]
    shown = [re.findall(r'<tr id="(q\d+)"', page) for page in pages.values()]
    assert [len(ids) for ids in shown] == [A_PAGE, A_PAGE, 1]
    assert [id for ids in shown for id in ids] == [r["id"] for r in rows if r["scores"]["em"] == 0]
    assert 'href="rl-0002.html"' in pages["rl-0001.html"]
    assert 'href="rl-0001.html"' in pages["rl-0003.html"]
    assert f"questions <b>{2 * A_PAGE + 1}</b> to <b>{2 * A_PAGE + 1}</b>" in pages["rl-0003.html"]


def test_the_report_shows_the_first_ones_as_far_as_there_is_room() -> None:
    rows = [row(n, float(n % 2)) for n in range(20)]
    assert [r["id"] for r in first_wrong("rl", rows, most=3)] == ["rl-q0", "rl-q2", "rl-q4"]
    one = len(json.dumps({**first_wrong("rl", rows[:1])[0], "id": "q0"}))
    assert len(first_wrong("rl", rows, size=2 * one)) == 2
    assert len(first_wrong("rl", rows, size=one - 1)) == 0


def test_long_answers_are_not_wrong() -> None:
    assert not wrong({"scores": {"race": 0.4, "rubric": 0.2}})
    assert wrong({"scores": {"em": 0.0, "rubric": 0.2}})


def test_what_was_said_cannot_run() -> None:
    hostile = {
        **row(0, 0.0), "answer": "<script>x</script>", "queries": ["<b>", "who"], "fault": ERRED, "gold_passages": ["p", "q"], "retrieved": ["q"]
    }  # fmt: skip
    [(_, page)] = wrong_pages("Wrong", "rl", [hostile], 1)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert "answerer erred" in page
    assert "1 of 2" in page
    assert "&lt;b&gt; · who" in page


def test_of_nothing_wrong_there_is_no_page() -> None:
    assert list(wrong_pages("Wrong", "rl", [row(0, 1.0), row(1, None)], 0)) == []
    assert not wrong({"scores": {}})
