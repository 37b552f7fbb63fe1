"""Collapse as M-ASK defines it, rates with intervals, and lengths of replies."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from rolecast.evaluation.lines import COLOURS, Line, chart
from rolecast.evaluation.stability import Course, collapsed_at, stability, stability_table, wilson
from rolecast.evaluation.study_page import contexts_table, render_contexts, render_stability


@pytest.mark.parametrize(
    ("scores", "at"),
    [
        ([0.3, 0.5, 0.6], None),
        ([0.3, 0.5, 0.04, 0.04, 0.04], 20),
        ([0.3, 0.5, 0.05, 0.05, 0.05], None),  # a tenth is not under a tenth
        ([0.3, 0.5, 0.04, 0.04], None),  # twice may be chance
        ([0.3, 0.5, 0.0, 0.0, 0.0, 0.4], None),  # it came back
        ([0.3, 0.5, 0.0, 0.0, 0.0, 0.4, 0.0, 0.0, 0.0], 60),  # and fell for good
        ([0.3, 0.5, 0.0, 0.06, 0.0, 0.0], None),
        ([0.0, 0.0, 0.0, 0.0], None),  # nothing was learned, so nothing is lost
        ([0.2, 0.0, 0.0, 0.0, 0.0], 10),
        ([], None),
    ],
)
def test_a_run_has_collapsed_where_it_falls_and_never_comes_back(scores: list[float], at: int | None) -> None:
    assert collapsed_at([(10 * n, score) for n, score in enumerate(scores)]) == at


def test_shares_of_few_runs_have_wide_intervals() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)  # as in tables of Wilson's interval
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-3)
    assert wilson(3, 3) == pytest.approx((0.4385, 1.0), abs=1e-3)


def course(seed: int, fall: int | None, taught: bool = True, stage: str = "rl") -> Course:
    scores = [(step, 0.0 if fall is not None and step >= fall else 0.5) for step in range(0, 100, 10)]
    return Course("decor", stage, seed, taught, scores, {"planner": [(1, 10.0 + seed), (2, 20.0)], "filter": [(2, 4.0)]})


COURSES = [course(0, 30), course(1, 60), course(2, None), course(0, None, taught=False), course(0, 90, stage="second")]


def test_rates_are_of_the_runs_that_had_collapsed_by_a_step() -> None:
    found = stability(COURSES, [20, 30, 90])
    taught, raw, second = found["rows"]
    assert [(rate["collapsed"], rate["of"]) for rate in taught["rates"]] == [(0, 3), (1, 3), (2, 3)]
    assert (taught["collapsed"], taught["best"][0], taught["last"][0]) == ({0: 30, 1: 60, 2: None}, 0.5, 0.0)
    assert [rate["of"] for rate in raw["rates"]] == [1, 1, 1]
    assert (raw["sft"], second["stage"]) == (False, "second")
    assert second["rates"][2]["collapsed"] == 0  # one evaluation is no collapse
    assert taught["lengths"] == {"planner": [[1, 11.0], [2, 20.0]], "filter": [[2, 4.0]]}


def test_the_table_has_a_row_for_each_kind_of_run() -> None:
    lines = stability_table(stability(COURSES, [30, 90])).splitlines()
    assert lines[2].split() == ["decor", "rl", "yes", "1/3", "2/3", "50.0", "16.7"]
    assert lines[3].split()[2] == "no"


class Reader(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.lines = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.lines += tag == "polyline"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


ORIGIN = {"commits": ["abc"], "commands": ["rolecast stability <b>"], "machines": ["two cores"]}


def test_the_page_of_stability_draws_each_seed_and_each_role() -> None:
    page = render_stability({"seeds": [0, 1, 2], "origin": ORIGIN, **stability(COURSES, [30, 90])})
    reader = Reader(page)
    assert (reader.open, reader.lines) == ([], 3 + 2 + 1 + 2 + 1 + 2)
    assert "rolecast stability &lt;b&gt;" in page
    assert "1 of 3" in page


def rows(run: str, *ks: int) -> list[dict[str, Any]]:
    return [
        {
            "run": run, "method": "decor", "seed": 0, "k": k, "measure": "em", "score": 0.5, "ci95": [0.4, 0.6] if k < 10 else None,
            "context": {"planner": 10 * k, "filter": 5}, "cut": 0.25, "searches": 2.0, "prompt": 100.0, "n": 20,
        }
        for k in ks
    ]  # fmt: skip


def test_the_page_of_contexts_draws_each_run() -> None:
    found = {
        "seeds": [0], "origin": ORIGIN, "ks": [3, 30], "passage_tokens": 200, "max_context": 8192, "questions": 20, "overrides": ["method.x=1"],
        "rows": [*rows("a", 3, 30), *rows("b", 3, 30)],
    }  # fmt: skip
    reader = Reader(render_contexts(found))
    assert (reader.open, reader.lines) == ([], 4)
    assert contexts_table(found).splitlines()[2].split()[:4] == ["a", "3", "50.0", "40.0"]
    assert contexts_table(found).splitlines()[-1].endswith("planner 300, filter 5")


def test_charts_have_round_ticks_around_their_points() -> None:
    drawn = chart([Line([(0, 0.21), (47, 0.63)], 0), Line([(47, 0.4)], COLOURS)], share=True)
    assert drawn is not None
    assert [tick["label"] for tick in drawn["up"]] == ["20", "30", "40", "50", "60", "70"]
    assert [tick["label"] for tick in drawn["across"]] == ["0", "10", "20", "30", "40", "50"]
    first, _ = drawn["lines"][0]["points"].split()
    assert first == f"{drawn['left']:.1f},{drawn['up'][0]['at'] - 0.1 * (drawn['up'][0]['at'] - drawn['up'][1]['at']):.1f}"
    assert [line["dashed"] for line in drawn["lines"]] == [False, True]
    assert chart([Line([], 0)]) is None
    flat = chart([Line([(3, 5.0)], 0)])
    assert flat is not None
    assert len(flat["up"]) > 1
