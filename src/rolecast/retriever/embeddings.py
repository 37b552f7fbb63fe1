"""Vectors of texts, the latest of them kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

KEPT = 20_000  # texts: some 30 MB of MiniLM's vectors


class Encodes(Protocol):
    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]: ...


class Embeddings:
    """Rewards ask for the same few texts over and over: a question's rollouts share its rubric and most of their queries.

    A text that is still kept has the very vector that it had before. Its last bits depend on what it was encoded with, and rewards
    that differ by those alone would be told apart.
    """

    def __init__(self, encoder: Encodes, kept: int = KEPT) -> None:
        self._encoder, self._limit = encoder, kept
        self._vectors: OrderedDict[str, npt.NDArray[np.float32]] = OrderedDict()

    def of(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Unit vectors (texts, dim), float32."""
        wanted = dict.fromkeys(texts)
        found = {text: self._vectors[text] for text in wanted if text in self._vectors}
        missing = [text for text in wanted if text not in found]
        if missing or not texts:
            encoded = self._encoder.encode(missing, "passage")
            if not texts:
                return encoded
            found |= zip(missing, encoded, strict=True)
        for text, vector in found.items():
            self._vectors[text] = vector
            self._vectors.move_to_end(text)
        while len(self._vectors) > self._limit:
            self._vectors.popitem(last=False)
        return np.stack([found[text] for text in texts])
