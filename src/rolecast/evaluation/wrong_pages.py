"""All questions that a stage's model got wrong, a few hundred a page, without scripts: what the report's browser has no room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rolecast.evaluation.attribution import FAULTS
from rolecast.evaluation.report import asset, number

A_PAGE = 200
PREDICTION: Mapping[str, Any] = {  # what one of before may lack
    "type": "", "hops": 0, "original_id": "", "answer": None, "status": "ok", "fault": "", "queries": [], "gold_passages": [], "retrieved": [],
}  # fmt: skip


def wrong(prediction: Mapping[str, Any]) -> bool:
    """Of a row of predictions.jsonl. One that is not scored is not wrong."""
    scores = prediction["scores"]
    score = number(scores.get("em", next(iter(scores.values()), None)))
    return score is not None and score < 1


def page_name(stage: str, page: int) -> str:
    """`page` from 1."""
    return f"{stage}-{page:04d}.html"


def wrong_pages(title: str, stage: str, predictions: Iterable[Mapping[str, Any]], count: int) -> Iterator[tuple[str, str]]:
    """(file name, HTML) of each page. `count`: how many of the predictions are wrong; they are read once, a page at a time."""
    environment = Environment(
        loader=PackageLoader("rolecast.evaluation", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )  # fmt: skip
    environment.filters["count"] = lambda value: f"{value:,.0f}"
    template, style = environment.get_template("wrong.html.jinja"), Markup(asset("report.css"))
    last = -(-count // A_PAGE)
    for page, rows in enumerate(_batches(row for row in predictions if wrong(row)), 1):
        yield (
            page_name(stage, page),
            template.render(
                title=title, style=style, first=(page - 1) * A_PAGE + 1, last=(page - 1) * A_PAGE + len(rows), rows=[_row(row) for row in rows],
                pages=[{"number": n, "name": page_name(stage, n), "current": n == page} for n in _linked(page, last)],
            ),
        )  # fmt: skip


def _linked(page: int, last: int) -> list[int]:
    """Numbers of pages to go to from one: the ends, and those around it."""
    return sorted({1, last, *range(max(1, page - 3), min(last, page + 3) + 1)})


def _batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    page: list[Mapping[str, Any]] = []
    for row in rows:
        page.append(row)
        if len(page) == A_PAGE:
            yield page
            page = []
    if page:
        yield page


def _row(given: Mapping[str, Any]) -> dict[str, Any]:
    row = {**PREDICTION, **given}
    gold, f1 = set(row["gold_passages"]), number(row["scores"].get("f1"))
    about = [row["type"], f"{row['hops']} hops" if row["hops"] else "", row["original_id"] or row["id"]]
    return {
        "id": row["id"], "question": row["question"], "about": ", ".join(part for part in about if part), "answer": row["answer"],
        "golds": row["golds"], "status": row["status"], "f1": "–" if f1 is None else f"{100 * f1:.0f}",
        "fault": FAULTS.get(row["fault"], "–"), "queries": row["queries"],
        "found": f"{len(gold & set(row['retrieved']))} of {len(gold)}" if gold else "–",
    }  # fmt: skip
