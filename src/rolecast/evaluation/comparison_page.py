"""A comparison as one HTML page without scripts: scores, differences, curves and costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rolecast.evaluation.comparison import percent
from rolecast.evaluation.display import asset, duration
from rolecast.evaluation.lines import Line, chart


def render_comparison(found: Mapping[str, Any]) -> str:
    """`found` is what `comparison.compared` makes, with what the runs have in common."""
    environment = Environment(
        loader=PackageLoader("rolecast.evaluation", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "percent": percent,
        "count": lambda value: f"{value:,.0f}",
        "duration": duration,
        "decimal": lambda value: f"{value:,.1f}",
    }
    methods = found["methods"]
    names = [row["method"] for row in methods]
    stages = list(dict.fromkeys(stage for row in methods for stage in row["seconds"]))
    return environment.get_template("comparison.html.jinja").render(
        found=found,
        measure="EM" if found["measure"] == "em" else found["measure"],
        headline=headline(found),
        dots=dots(methods),
        pairs={(pair["a"], pair["b"]): pair for pair in found["pairs"]}
        | {(pair["b"], pair["a"]): _turned(pair) for pair in found["pairs"]},
        names=names,
        colours={name: number for number, name in enumerate(names)},
        curves=chart([Line(curve, number) for number, row in enumerate(methods) for curve in row["curves"].values()], share=True),
        stages=stages,
        roles={row["method"]: list(dict.fromkeys([*row["evaluation"]["context"], *row["training"]["context"]])) for row in methods},
        configs=json.dumps(found.get("configs", {}), indent=1, ensure_ascii=False),
        style=Markup(asset("report.css") + asset("comparison.css")),
    )


def headline(found: Mapping[str, Any]) -> str:
    """What can be said of the best method against the one that comes next."""
    ranked = sorted(found["methods"], key=lambda row: -row["mean"])
    best = ranked[0]
    said = f"{best['method']} scores highest, {percent(best['mean'])} [{percent(best['low'])}, {percent(best['high'])}]"
    if len(ranked) == 1:
        return f"{said}."
    pair = next(p for p in found["pairs"] if {p["a"], p["b"]} == {best["method"], ranked[1]["method"]})
    ahead = pair if pair["a"] == best["method"] else _turned(pair)
    if not ahead["mean"]:
        return (
            f"{best['method']} and {ranked[1]['method']} score highest and the same, {percent(best['mean'])} on {ahead['n']:,} questions."
        )
    sure = "" if ahead["low"] > 0 else ", an interval that holds 0"
    return (
        f"{said}; it is {100 * ahead['mean']:.1f} points [{100 * ahead['low']:.1f}, {100 * ahead['high']:.1f}] ahead of "
        f"{ranked[1]['method']} on the same {ahead['n']:,} questions{sure}."
    )


def _turned(pair: Mapping[str, Any]) -> dict[str, Any]:
    return {**pair, "a": pair["b"], "b": pair["a"], "mean": 0.0 - pair["mean"], "low": 0.0 - pair["high"], "high": 0.0 - pair["low"]}


def dots(methods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a dot plot, in per cent of its width: the score with its interval, each seed, and the start of RL."""
    return [
        {
            "method": row["method"], "at": 100 * row["mean"], "low": 100 * row["low"], "high": 100 * row["high"],
            "seeds": [100 * score for score in row["per_seed"].values()], "start": 100 * row["start"]["mean"] if row["start"] else None,
        }
        for row in methods
    ]  # fmt: skip
