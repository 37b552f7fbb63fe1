"""Two evaluations question by question, by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rolecast.errors import InputError
from rolecast.evaluation.diff import diff, diff_pages, diff_table, sentence
from rolecast.evaluation.pages import A_PAGE


def row(key: str, em: float | None, f1: float = 0.5, **more: Any) -> dict[str, Any]:
    return {"id": key, "question": f"Who is {key}?", "golds": ["g"], "answer": f"a{em}", "scores": {"em": em, "f1": f1}, **more}


BEFORE = {
    "kept": row("kept", 1.0),
    "lost": row("lost", 1.0, 1.0),
    "won": row("won", 0.0),
    "gone": row("gone", 1.0),
    "mute": row("mute", None),
}
AFTER = {"won": row("won", 1.0, 1.0), "kept": row("kept", 1.0), "lost": row("lost", 0.0, 0.0, fault="answerer_erred"), "mute": row("mute", 1.0), "new": row("new", 0.0)}  # fmt: skip


def test_what_got_worse_comes_first_and_what_one_lacks_is_left_out() -> None:
    found = diff("a", BEFORE, "b", AFTER)
    assert [(pair.a["id"], pair.change) for pair in found.pairs] == [("lost", -1.0), ("won", 1.0), ("kept", 0.0)]
    assert found.alone == (2, 2)  # gone and mute; new and mute
    assert (found.paired["em"]["mean"], found.paired["em"]["n"], found.paired["em"]["p"]) == (0.0, 3, 1.0)
    assert (found.paired["f1"]["n"], found.paired["f1"]["mean"]) == (4, pytest.approx(-0.5 / 4))
    assert sentence(found).startswith("EM of A is 66.7, of B 66.7: B − A is +0.0 [")
    assert sentence(found).endswith("over 3 questions; 1 got better, 1 worse, McNemar's p = 1")


def test_by_another_score() -> None:
    found = diff("a", BEFORE, "b", AFTER, "f1")
    assert [(pair.a["id"], pair.change) for pair in found.pairs] == [("lost", -1.0), ("won", 0.5), ("kept", 0.0), ("mute", 0.0)]
    with pytest.raises(InputError, match=r"both have the score 'report' of; name another by --measure: em, f1"):
        diff("a", BEFORE, "b", AFTER, "report")
    with pytest.raises(InputError, match=r"a and b have no question in common that both have the score 'em' of$"):
        diff("a", BEFORE, "b", {"new": row("new", 0.0)})


def test_the_table_shows_changes_and_says_how_many_more_there_are() -> None:
    table = diff_table(diff("runs/a, rl", BEFORE, "runs/b, rl", AFTER), 1)
    assert "A: runs/a, rl\nB: runs/b, rl\n" in table
    assert "left out: 2 questions of A and 2 of B" in table
    assert re.search(r"Who is lost\? +a1.0 +a0.0 +-100", table)
    assert "Who is won" not in table
    assert table.endswith("and 1 more")


def test_every_question_is_on_one_page() -> None:
    before = {str(n): row(str(n), float(n % 2)) for n in range(A_PAGE + 1)}
    after = {key: row(key, 1.0, answer="<script>" if key == "0" else "x") for key in before}
    pages = dict(diff_pages(diff("a", before, "b", after)))
    assert list(pages) == ["index.html", "page-0002.html"]
    shown = [name for page in pages.values() for name in re.findall(r"Who is (\d+)\?", page)]
    assert sorted(shown, key=int) == [str(n) for n in range(A_PAGE + 1)]
    assert "<script" not in pages["index.html"]
    assert "&lt;script&gt;" in pages["index.html"]
    assert 'href="page-0002.html"' in pages["index.html"]


def test_a_page_says_what_failed() -> None:
    [(_, page)] = diff_pages(diff("a", BEFORE, "b", AFTER))
    assert "answerer erred" in page
    assert "left out: 2 questions of A" in page
