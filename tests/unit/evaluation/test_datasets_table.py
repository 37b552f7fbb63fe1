"""A pooled set has a row for each data set; lenient scores have columns only where they were taken."""

from __future__ import annotations

from rolecast.evaluation.metrics import summarize
from rolecast.evaluation.table import datasets_table
from rolecast.evaluation.tasks import QA
from rolecast.types import Gold, Question, Trajectory


def answered(dataset: str, answer: str) -> Trajectory:
    return Trajectory("t", Question("q", "?", Gold(("yes",)), dataset=dataset), "g", 0, "direct", 0, answer=answer)


def test_rows_by_data_set() -> None:
    result = summarize([answered("one", "yes"), answered("one", "no"), answered("two", "yes")], 0, 100, QA)
    assert {name: (part["n"], part["em"]) for name, part in result["by_dataset"].items()} == {"one": (2, 0.5), "two": (1, 1.0)}
    head, _, *rows = datasets_table(result).splitlines()
    assert [row.split()[:3] for row in rows] == [["one", "2", "50.0"], ["two", "1", "100.0"], ["all", "3", "66.7"]]
    assert "lenient" not in head


def test_one_data_set_is_not_split() -> None:
    assert "by_dataset" not in summarize([answered("one", "yes")], 0, 100, QA)
