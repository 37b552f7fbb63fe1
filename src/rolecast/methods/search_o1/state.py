"""What a Search-o1 episode knows at a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rolecast.methods.transcript import TranscriptState
from rolecast.types import Passage

SEARCH = ("<|begin_search_query|>", "<|end_search_query|>")
RESULT = ("<|begin_search_result|>", "<|end_search_result|>")
NOTHING = "nothing"  # what a search has found where its reader says so, or nothing that can be read


@dataclass(slots=True)
class SearchO1State(TranscriptState):
    """`reasoning`, `query`, `documents`: what the reader is shown of the last search."""

    reasoning: str = ""
    query: str = ""
    documents: Sequence[Passage] = field(default_factory=list)
