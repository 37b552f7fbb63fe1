"""Percentiles of seconds by role, worked by hand, and how they are told."""

from __future__ import annotations

import json
from pathlib import Path

from rolecast.evaluation.latency import latency, parts_of, read_result
from rolecast.evaluation.table import parts_table

# Five questions take 1 to 5 s. Between the 4th and the 5th of five lie the last 25 %, so the 95th percentile is 4 + 0.8.
SPENT = [{"answer": float(n), "planner": n / 10, "search": 0.5} for n in (3, 1, 5, 2, 4)]
COST = {"context": {"planner": 1234, "filter": 80}}


def test_percentiles_by_part() -> None:
    found = latency([*SPENT, {"planner": 10.0}], 8)  # one that failed before its answer
    assert found["answer"] == {"n": 5, "p50": 3.0, "p95": 4.8}
    assert found["roles"] == {"planner": {"n": 6, "p50": 0.35, "p95": 7.625}}  # .1 .2 .3 .4 .5 10: 4.75 of 5 steps, .5 + .75 · 9.5
    assert found["search"] == {"n": 5, "p50": 0.5, "p95": 0.5}
    assert found["in_flight"] == 8


def test_nothing_was_played() -> None:
    assert latency([], 8) == {"in_flight": 8, "roles": {}}


def test_a_table_has_a_row_for_the_question_each_role_and_the_searches() -> None:
    lines = parts_table({"rl": {"latency": latency(SPENT, 8), "cost": COST}}).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["rl", "question", "3.000", "4.800", "–"], ["rl", "planner", "0.300", "0.480", "1,234"], ["rl", "filter", "–", "–", "80"],
        ["rl", "searches", "0.500", "0.500", "–"],
    ]  # fmt: skip


def test_an_evaluation_of_before_has_contexts_alone(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"em": 0.5, "cost": COST}))
    assert [(row["part"], row["p50"], row["context"]) for row in parts_of(read_result(tmp_path))] == [
        ("planner", None, 1234), ("filter", None, 80),
    ]  # fmt: skip
    assert parts_table({"rl": {"em": 0.5}}) == ""
    (tmp_path / "latency.json").write_text(json.dumps(latency(SPENT, 8)))
    assert read_result(tmp_path)["latency"]["answer"]["p50"] == 3.0
