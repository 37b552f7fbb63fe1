"""Long tables as pages without scripts: what no single page has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rolecast.evaluation.display import asset

A_PAGE = 200  # rows


def pages(
    template: str, rows: Iterable[Mapping[str, Any]], count: int, name: Callable[[int], str], row: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    **given: Any,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """(file name, HTML) of each page, from 1. `rows` are read once, a page at a time; there are `count` of them. `row`: as the template
    shows one."""
    environment = Environment(
        loader=PackageLoader("rolecast.evaluation", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters["count"] = lambda value: f"{value:,.0f}"
    drawn, style, last = environment.get_template(template), Markup(asset("report.css")), -(-count // A_PAGE)
    for page, part in enumerate(_batches(rows), 1):
        before = (page - 1) * A_PAGE
        linked = [{"number": n, "name": name(n), "current": n == page} for n in _linked(page, last)]
        yield (
            name(page),
            drawn.render(style=style, first=before + 1, last=before + len(part), rows=[row(one) for one in part], pages=linked, **given),
        )


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
