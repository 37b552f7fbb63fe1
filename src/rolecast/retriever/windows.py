"""Passages that outgrow an encoder's window: counted, and cut or split."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from rolecast.retriever.dense import Rows
    from rolecast.retriever.encoder import Encoder

log = logging.getLogger(__name__)
Long = Literal["cut", "split"]


@dataclass(frozen=True, slots=True)
class Built:
    """`longer`: passages that outgrow the window of `window` tokens; `longest`: tokens of the longest; `vectors`: of all passages."""

    window: int = 0
    longer: int = 0
    longest: int = 0
    vectors: int = 0

    def __str__(self) -> str:
        longest = f", the longest of {self.longest}" if self.longer else ""
        return f"{self.vectors} vectors; {self.longer} passages outgrow the encoder's {self.window} tokens{longest}"


def fitted(texts: Sequence[str], titles: Sequence[str], encoder: Encoder, long: Long) -> tuple[Sequence[str], Rows | None, Built]:
    """What is encoded, of which passage each is (None: one of each), and what was counted. Texts begin with their titles."""
    lengths, window = encoder.lengths(texts), encoder.window
    longer = sum(length > window for length in lengths)
    if longer:
        what = "what lies beyond is not searched by meaning (split them instead)" if long == "cut" else "each is searched in pieces"
        log.warning("%d of %d passages are longer than the encoder's %d tokens: %s", longer, len(texts), window, what)
    if long == "cut" or not longer:
        return texts, None, Built(window, longer, max(lengths), len(texts))
    pieces, rows = list[str](), list[int]()
    for row, (text, title, length) in enumerate(zip(texts, titles, lengths, strict=True)):
        of_text = [text] if length <= window else encoder.pieces(text, f"{title}. " if title else "")
        pieces += of_text
        rows += [row] * len(of_text)
    return pieces, np.array(rows, dtype=np.int64), Built(window, longer, max(lengths), len(pieces))
