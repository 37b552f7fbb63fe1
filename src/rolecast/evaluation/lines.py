"""Line charts of pages without scripts: polylines and ticks in a chart's own units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

COLOURS = 7  # of report.css; a line beyond is dashed
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 260, 52, 12, 8, 28


@dataclass(frozen=True, slots=True)
class Line:
    """`colour`: the place of its name among the page's names."""

    points: Sequence[Sequence[float]]
    colour: int
    faint: bool = False


def chart(lines: Sequence[Line], share: bool = False) -> dict[str, Any] | None:
    """What the template draws; None where there is no point. `share`: the values are shares, shown in per cent."""
    points = [point for line in lines for point in line.points]
    if not points:
        return None
    scale = 100.0 if share else 1.0
    across = _ticks(min(point[0] for point in points), max(point[0] for point in points))
    up = _ticks(scale * min(point[1] for point in points), scale * max(point[1] for point in points))

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - across[0]) / (across[-1] - across[0])

    def y(value: float) -> float:
        return TOP + (HEIGHT - BOTTOM - TOP) * (up[-1] - value) / (up[-1] - up[0])

    return {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "bottom": HEIGHT - BOTTOM,
        "lines": [
            {
                "points": " ".join(f"{x(point[0]):.1f},{y(scale * point[1]):.1f}" for point in line.points),
                "colour": line.colour % COLOURS, "dashed": line.colour >= COLOURS, "faint": line.faint,
            }
            for line in lines if line.points
        ],
        "across": [{"at": round(x(tick), 1), "label": f"{tick:,.10g}"} for tick in across],
        "up": [{"at": round(y(tick), 1), "label": f"{tick:,.10g}"} for tick in up],
    }  # fmt: skip


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`, some four to eight of them."""
    span = (high - low) or abs(high) or 1.0
    power = 10 ** floor(log10(span / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 6)
    first, last = floor(low / step), ceil(high / step)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]
