"""The public layouts that `rolecast.data.convert` reads, by name."""

from __future__ import annotations

from rolecast.data.formats.base import Format, Item, Row, read_rows
from rolecast.data.formats.multi_hop import HOTPOTQA, MUSIQUE, TWO_WIKI
from rolecast.data.formats.plain import CORPUS, FLASHRAG, MULTIHOP, ROLECAST, SEARCH_R1, VERL

FORMATS: dict[str, Format] = {
    layout.name: layout for layout in (FLASHRAG, HOTPOTQA, TWO_WIKI, MUSIQUE, SEARCH_R1, VERL, CORPUS, MULTIHOP, ROLECAST)
}

__all__ = ["FORMATS", "Format", "Item", "Row", "read_rows"]
