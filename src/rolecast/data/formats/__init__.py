"""The public layouts that `rolecast.data.convert` reads, by name."""

from __future__ import annotations

from rolecast.data.formats.base import Format, Item, Parse
from rolecast.data.formats.containers import Row, first_cells, read_rows
from rolecast.data.formats.corpora import BEIR, CORPUS, MS_MARCO
from rolecast.data.formats.multi_hop import HOTPOTQA, MUSIQUE, TWO_WIKI
from rolecast.data.formats.open_qa import AMBIGQA, BAMBOOGLE, DPR, DPR_COPY, FRAMES, KILT, PLAIN, POPQA
from rolecast.data.formats.pages import NATURAL_QUESTIONS, SQUAD, TRIVIAQA
from rolecast.data.formats.plain import FLASHRAG, MULTIHOP, ROLECAST, SEARCH_R1, VERL
from rolecast.data.formats.reports import ARTICLE, CRITERIA, HEALTH_BENCH, QUERY, RESEARCH_QA

FORMATS: dict[str, Format] = {
    layout.name: layout
    for layout in (
        PLAIN, NATURAL_QUESTIONS, TRIVIAQA, POPQA, AMBIGQA, HOTPOTQA, TWO_WIKI, MUSIQUE, BAMBOOGLE, FRAMES, SQUAD, KILT, DPR, DPR_COPY,
        FLASHRAG, SEARCH_R1, VERL, MULTIHOP, ROLECAST,
        CRITERIA, QUERY, ARTICLE, HEALTH_BENCH, RESEARCH_QA,
        CORPUS, BEIR, MS_MARCO,
    )
}  # fmt: skip

TEXTS = "texts"  # plain text and Markdown, which have no rows

__all__ = ["FORMATS", "TEXTS", "Format", "Item", "Parse", "Row", "first_cells", "read_rows"]
