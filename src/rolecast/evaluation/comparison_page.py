"""A comparison as one HTML page without scripts: scores, differences, curves and costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rolecast.evaluation.comparison import percent
from rolecast.evaluation.report import asset, duration

COLOURS = 7  # of report.css; the eighth line is dashed
WIDTH, HEIGHT, LEFT, BOTTOM = 760, 260, 44, 28  # of a chart, in its own units


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
        colours={name: number % COLOURS for number, name in enumerate(names)},
        dashes={name: "6 3" if number >= COLOURS else "" for number, name in enumerate(names)},
        curves=curves(methods),
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
    sure = "" if ahead["low"] > 0 else ", an interval that holds 0"
    return (
        f"{said}; it is {100 * ahead['mean']:.1f} points [{100 * ahead['low']:.1f}, {100 * ahead['high']:.1f}] ahead of "
        f"{ranked[1]['method']} on the same {ahead['n']:,} questions{sure}."
    )


def _turned(pair: Mapping[str, Any]) -> dict[str, Any]:
    return {**pair, "a": pair["b"], "b": pair["a"], "mean": -pair["mean"], "low": -pair["high"], "high": -pair["low"]}


def dots(methods: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a dot plot, in per cent of its width: the score with its interval, each seed, and the start of RL."""
    return [
        {
            "method": row["method"], "at": 100 * row["mean"], "low": 100 * row["low"], "high": 100 * row["high"],
            "seeds": [100 * score for score in row["per_seed"].values()], "start": 100 * row["start"]["mean"] if row["start"] else None,
        }
        for row in methods
    ]  # fmt: skip


def curves(methods: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Polylines of dev scores over sampled tokens, one a seed, with the ticks of both axes; None where nothing was trained."""
    points = [point for row in methods for curve in row["curves"].values() for point in curve]
    if not points:
        return None
    most = max(point[0] for point in points) or 1.0
    low, high = floor(10 * min(point[1] for point in points)) / 10, max(ceil(10 * max(point[1] for point in points)) / 10, 0.1)
    span = max(high - low, 0.1)

    def place(point: Sequence[float]) -> str:
        x = LEFT + (WIDTH - LEFT - 12) * point[0] / most
        return f"{x:.1f},{8 + (HEIGHT - BOTTOM - 8) * (1 - (point[1] - low) / span):.1f}"

    lines = [
        {"method": row["method"], "points": " ".join(map(place, curve))} for row in methods for curve in row["curves"].values() if curve
    ]
    across = [{"x": place((most * part / 4, low)).partition(",")[0], "label": f"{most * part / 4:,.0f}"} for part in range(5)]
    count = round(span * 10)
    up = [
        {"y": place((0.0, low + span * part / count)).partition(",")[2], "label": f"{100 * (low + span * part / count):.0f}"}
        for part in range(count + 1)
    ]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - 12,
        "bottom": HEIGHT - BOTTOM,
        "lines": lines,
        "across": across,
        "up": up,
    }
