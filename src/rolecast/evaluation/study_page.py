"""Pages of the studies: stability over seeds, and how contexts grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rolecast.evaluation.comparison import percent
from rolecast.evaluation.display import asset
from rolecast.evaluation.lines import Line, chart
from rolecast.evaluation.table import aligned


def render_stability(found: Mapping[str, Any]) -> str:
    """`found` is what `stability.stability` makes, with the seeds."""
    cards = [
        {
            "row": row,
            "scores": chart(
                [
                    Line(curve, 5 if row["collapsed"][seed] is not None else 0, faint=len(row["scores"]) > 4)
                    for seed, curve in row["scores"].items()
                ],
                share=True,
            ),
            "lengths": chart([Line(curve, number) for number, curve in enumerate(row["lengths"].values())]),
            "roles": list(row["lengths"]),
        }
        for row in found["rows"]
    ]
    return _render("stability.html.jinja", found=found, cards=cards)


def render_contexts(found: Mapping[str, Any]) -> str:
    """`found` is what `long_context.study_contexts` makes."""
    runs = list(dict.fromkeys(row["run"] for row in found["rows"]))
    named = {run: [row for row in found["rows"] if row["run"] == run] for run in runs}
    roles = {run: list(dict.fromkeys(role for row in rows for role in row["context"])) for run, rows in named.items()}
    return _render(
        "contexts.html.jinja", found=found, runs=named, roles=roles,
        longest=chart([Line([(row["k"], max(row["context"].values(), default=0)) for row in named[run]], number) for number, run in enumerate(runs)]),
        scores=chart([Line([(row["k"], row["score"]) for row in named[run]], number) for number, run in enumerate(runs)], share=True),
    )  # fmt: skip


def contexts_table(found: Mapping[str, Any]) -> str:
    """A row for each run and k: the score, and the longest context of each role."""
    head = ["run", "k", "score", "95 % interval", "cut off", "longest context of each role"]
    rows = [
        [
            row["run"], str(row["k"]), percent(row["score"]), _interval(row["ci95"]), percent(row["cut"]),
            ", ".join(f"{role} {tokens}" for role, tokens in row["context"].items()),
        ]
        for row in found["rows"]
    ]  # fmt: skip
    return aligned(head, rows)


def _interval(bounds: Sequence[float] | None) -> str:
    return f"{percent(bounds[0])} – {percent(bounds[1])}" if bounds else "–"


def _render(template: str, **given: Any) -> str:
    environment = Environment(
        loader=PackageLoader("rolecast.evaluation", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"percent": percent, "count": lambda value: f"{value:,.0f}"}
    return environment.get_template(template).render(style=Markup(asset("report.css") + asset("comparison.css")), **given)
