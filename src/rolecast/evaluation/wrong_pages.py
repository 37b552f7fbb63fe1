"""All questions that a stage's model got wrong, a few hundred a page: what the report's browser has no room for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from rolecast.evaluation.attribution import FAULTS
from rolecast.evaluation.display import number
from rolecast.evaluation.pages import pages
from rolecast.evaluation.reports import SCORES

IN_REPORT, BYTES = 500, 2 << 20  # rows of all stages that a report shows, and what they may take
PREDICTION: Mapping[str, Any] = {  # what one of before may lack
    "type": "", "hops": 0, "original_id": "", "answer": None, "status": "ok", "fault": "", "queries": [], "gold_passages": [], "retrieved": [],
}  # fmt: skip


def wrong(prediction: Mapping[str, Any]) -> bool:
    """Of a row of predictions.jsonl. One that is not scored is not wrong, and a long answer is neither right nor wrong."""
    scores = prediction["scores"]
    if next(iter(scores), "") in SCORES:
        return False
    score = number(scores.get("em", next(iter(scores.values()), None)))
    return score is not None and score < 1


def page_name(stage: str, page: int) -> str:
    """`page` from 1."""
    return f"{stage}-{page:04d}.html"


def wrong_pages(title: str, stage: str, predictions: Iterable[Mapping[str, Any]], count: int) -> Iterator[tuple[str, str]]:
    """(file name, HTML) of each page. `count`: how many of the predictions are wrong."""
    rows = (row for row in predictions if wrong(row))
    return pages("wrong.html.jinja", rows, count, partial(page_name, stage), _row, title=title)


def first_wrong(stage: str, predictions: Iterable[Mapping[str, Any]], most: int = IN_REPORT, size: int = BYTES) -> list[dict[str, Any]]:
    """What the report itself shows, so that it can be passed on alone: as many rows as it has room for, the first ones. Ids are the stage's, since
    stages share questions."""
    found: list[dict[str, Any]] = []
    for row in islice((_row(row) for row in predictions if wrong(row)), most):
        size -= len(json.dumps(row))
        if size < 0:
            break
        found.append({**row, "id": f"{stage}-{row['id']}"})
    return found


def about(row: Mapping[str, Any]) -> str:
    """Type, hops and id of a prediction's question."""
    parts = [row["type"], f"{row['hops']} hops" if row["hops"] else "", row["original_id"] or row["id"]]
    return ", ".join(part for part in parts if part)


def _row(given: Mapping[str, Any]) -> dict[str, Any]:
    row = {**PREDICTION, **given}
    gold, f1 = set(row["gold_passages"]), number(row["scores"].get("f1"))
    return {
        "id": row["id"], "question": row["question"], "about": about(row), "answer": row["answer"], "golds": " / ".join(row["golds"]),
        "f1": "–" if f1 is None else f"{100 * f1:.0f}", "fault": FAULTS.get(row["fault"], "–"),
        "queries": " · ".join(row["queries"]), "found": f"{len(gold & set(row['retrieved']))} of {len(gold)}" if gold else "–",
    }  # fmt: skip
