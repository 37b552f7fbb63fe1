"""What a Search-R1 episode starts from: all else is in its transcript."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SearchR1State:
    question: str
