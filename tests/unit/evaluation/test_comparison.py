"""What a comparison says: means and spreads by hand, intervals, pairs on the same questions, and its page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from rolecast.errors import InputError
from rolecast.evaluation.comparison import Finished, Point, compared, comparison_table, estimate
from rolecast.evaluation.comparison_page import dots, headline, render_comparison
from rolecast.evaluation.cost import Cost


def scores(values: list[float], seed: int = 0, f1: float = 0.5) -> dict[str, dict[str, float | None]]:
    return {f"{seed}:{n}": {"em": value, "f1": f1} for n, value in enumerate(values)}


def run(method: str, seed: int, values: list[float], **given: Any) -> Finished:
    return Finished(
        method, seed, trained=given.pop("trained", True), headline=given.pop("headline", "em"), scores=scores(values, given.pop("questions", seed)),
        start=given.pop("start", {}), training=given.pop("training", Cost(100, context={"planner": 7})),
        evaluation=given.pop("evaluation", Cost(len(values) * 10, searches=len(values) * 2, context={"planner": 9})),
        seconds=given.pop("seconds", {"sft": 60.0, "rl": 120.0}), **given,
    )  # fmt: skip


RUNS = [
    run("decor", 0, [1.0, 1.0, 0.0, 1.0], start=scores([0.0, 0.0, 0.0, 1.0]), curve=[Point(0, 0.2), Point(50, 0.6)], ended=["budget"]),
    run(
        "decor", 1, [1.0, 1.0, 1.0, 1.0], start=scores([0.0, 1.0, 0.0, 1.0], 1), training=Cost(140, 6, context={"planner": 12, "filter": 3})
    ),
    run("solo", 0, [1.0, 0.0, 0.0, 1.0], seconds={"sft": 30.0}),
    run("solo", 1, [0.0, 0.0, 1.0, 1.0], seconds={"sft": 90.0}),
]


def row(found: dict[str, Any], method: str) -> dict[str, Any]:
    [own] = [row for row in found["methods"] if row["method"] == method]
    return dict(own)


def test_means_spreads_and_costs_by_hand() -> None:
    found = compared(RUNS)
    decor = row(found, "decor")
    assert (found["measure"], found["seeds"]) == ("em", [0, 1])
    assert (decor["mean"], decor["n"], decor["per_seed"]) == (0.875, 8, {0: 0.75, 1: 1.0})
    assert decor["spread"] == pytest.approx(0.25 / 2**0.5)  # of a sample: over n − 1
    assert decor["start"]["mean"] == 0.375
    assert (decor["f1"], decor["ended"]) == (0.5, ["budget"])
    assert decor["training"] == {
        "sampled": 120, "frozen": 3, "prompt": 0, "searches": 0, "judge_calls": 0, "judge_tokens": 0, "context": {"planner": 12, "filter": 3},
    }  # fmt: skip
    assert (decor["evaluation"]["sampled"], decor["evaluation"]["searches"]) == (10, 2)  # of a question
    assert row(found, "solo")["seconds"] == {"sft": 60.0}
    assert row(found, "solo")["start"] is None


def test_pairs_are_of_the_same_questions_with_the_same_seeds() -> None:
    [pair] = compared(RUNS)["pairs"]
    assert (pair["a"], pair["b"], pair["n"]) == ("solo", "decor", 8)
    assert pair["mean"] == pytest.approx(0.5 - 0.875)
    assert pair["low"] < pair["mean"] < pair["high"] <= 0
    shifted = [*RUNS[:2], run("solo", 1, [0.0, 0.0, 1.0, 1.0]), run("solo", 2, [0.0] * 4)]
    assert compared(shifted)["pairs"][0]["n"] == 4  # of seed 1 alone
    same = [run("a", 0, [1.0, 1.0], questions=7), run("b", 0, [0.0, 0.0], questions=7), run("b", 1, [1.0, 1.0], questions=7)]
    assert compared(same)["pairs"][0]["mean"] == -1.0  # b's other seed has no partner, though it was asked the same
    assert compared([*same, run("a", 1, [0.0, 0.0], questions=7)])["pairs"][0]["mean"] == 0.0
    with pytest.raises(InputError, match="solo and decor have no question of one seed in common"):
        compared([RUNS[0], run("solo", 7, [1.0])])


def test_a_difference_has_a_smaller_interval_than_its_two_scores_where_they_go_together() -> None:
    values = [float(v) for v in np.random.Generator(np.random.PCG64(0)).integers(0, 2, 200)]
    better = [*values[:190], *[1.0] * 10]
    found = compared([run("a", 0, values), run("b", 0, better)])
    widths = [row(found, name)["high"] - row(found, name)["low"] for name in "ab"]
    [pair] = found["pairs"]
    assert pair["high"] - pair["low"] < min(widths) / 3


def test_a_question_that_two_seeds_were_asked_counts_once() -> None:
    found = estimate([{"q": 1.0, "r": 0.0}, {"q": 0.0, "r": 0.0}])
    assert (found.mean, found.n) == (0.25, 2)
    assert (found.low, found.high) == (0.0, 0.5)


def test_an_interval_covers_the_mean_of_most_samples() -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    held = 0
    for _ in range(60):
        found = estimate([{str(n): float(v) for n, v in enumerate(rng.random(80) < 0.3)}])
        held += found.low <= 0.3 <= found.high
    assert held >= 52


def test_the_measure_is_what_all_are_selected_on_or_exact_match() -> None:
    reward = {"q": {"em": 0.0, "report": 0.5}}
    ones = [Finished(name, 0, True, "report", reward, {}, Cost(), Cost(), {}) for name in ("a", "b")]
    assert compared(ones)["measure"] == "report"
    mixed = [ones[0], Finished("c", 0, True, "em", reward, {}, Cost(), Cost(), {})]
    assert compared(mixed)["measure"] == "em"
    assert row(compared(mixed, "report"), "c")["mean"] == 0.5
    with pytest.raises(InputError, match=r"no episode of a has the score 'style'; name another by --measure: em, report$"):
        compared(ones, "style")


def test_the_table_has_a_row_for_each_method_against_the_first() -> None:
    head, _, decor, solo = comparison_table(compared(RUNS)).splitlines()
    assert "− decor" in head
    assert decor.split()[:2] == ["decor", "87.5"]
    assert "-37.5" in solo
    assert solo.split()[-1] == "1.0"  # minutes


class Reader(HTMLParser):
    """Whether every element is closed, and what is said."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "link", "br", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


def page_of(runs: list[Finished]) -> dict[str, Any]:
    names = dict.fromkeys(run.method for run in runs)
    protocol = {
        "budget": 120,
        "sft_rows": dict.fromkeys(names, 640),
        "test_questions": 4,
        "max_context": 512,
        "retriever": "bm25",
        "judge": "lexical",
    }
    return {**protocol, **compared(runs)}


def test_the_page_shows_scores_differences_curves_and_costs() -> None:
    reader = Reader(render_comparison(page_of(RUNS)))
    assert reader.open == []
    for told in ("-37.5", "+37.5", "before RL", "budget", "Longest context", "<script"):
        assert (told in reader.said) == (told != "<script"), told


def test_a_difference_of_nothing_has_no_sign_of_minus() -> None:
    assert "-0.0" not in Reader(render_comparison(page_of([run("a", 0, [0.0, 1.0]), run("b", 0, [0.0, 1.0])]))).said


def test_the_page_of_one_untrained_method_has_neither_pairs_nor_curves() -> None:
    said = Reader(render_comparison(page_of([run("direct<b>", 0, [1.0, 0.0], trained=False)]))).said
    assert "direct<b>" in said  # as text
    assert "Paired differences" not in said
    assert "Dev score" not in said


def test_the_headline_says_whether_the_best_is_surely_ahead() -> None:
    many = [1.0] * 40
    sure = headline(compared([run("a", 0, [0.0] * 40), run("b", 0, many)]))
    assert sure == "b scores highest, 100.0 [91.2, 100.0]; it is 100.0 points [82.4, 100.0] ahead of a on the same 40 questions."
    doubtful = headline(compared([run("a", 0, [1.0, 0.0, 1.0]), run("b", 0, [0.0, 1.0, 0.0])]))
    assert doubtful.endswith("on the same 3 questions, an interval that holds 0.")
    assert headline(compared([run("a", 0, [0.0]), run("b", 0, [0.0])])) == "a and b score highest and the same, 0.0 on 1 questions."
    assert headline(compared([RUNS[0]])) == "decor scores highest, 75.0 [25.0, 100.0]."


def test_dots_stand_at_their_share_of_the_scale() -> None:
    [decor, solo] = dots(compared(RUNS)["methods"])
    assert (decor["at"], decor["seeds"], decor["start"]) == (87.5, [75.0, 100.0], 37.5)
    assert solo["start"] is None
