"""How pages write numbers, seconds and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from math import isfinite
from typing import Any


def number(value: Any) -> float | None:
    """`value` as a float if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def finite(value: Any) -> Any:
    """`value` as JSON allows it: NaN and infinities are null, mappings and sequences plain, anything else its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [finite(item) for item in value]
    return str(value)


def script_json(value: Any) -> str:
    """JSON for a script element. Without "<" nothing in the data can end the element or open a comment in it."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def asset(name: str) -> str:
    return (files("rolecast.evaluation") / "templates" / name).read_text(encoding="utf-8")


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def count(value: float) -> str:
    return f"{value:,.0f}"


def decimal(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else count(value)


def shown(value: Any) -> str:
    known = number(value)
    if known is not None:
        return count(known) if known.is_integer() or abs(known) >= 1000 else f"{known:.4g}"
    if value is None or isinstance(value, float):
        return "–"
    return value if isinstance(value, str) else json.dumps(finite(value), ensure_ascii=False)
