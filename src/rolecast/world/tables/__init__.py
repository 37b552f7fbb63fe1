"""Small tables of real facts. README.md names their sources and licences; derive.py wrote them."""

from __future__ import annotations

from importlib import resources


def rows(table: str) -> list[dict[str, str]]:
    """The rows of `table`.tsv, by column name. An empty value is a fact that was not kept."""
    text = resources.files(__name__).joinpath(f"{table}.tsv").read_text(encoding="utf-8")
    head, *lines = text.rstrip("\n").split("\n")
    columns = head.split("\t")
    return [dict(zip(columns, line.split("\t"), strict=True)) for line in lines]
