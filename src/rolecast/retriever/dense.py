"""Dense retrieval: an exact FAISS inner-product index over a sentence encoder's vectors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it reports every build of itself that it tries to load
import faiss  # noqa: E402

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Encoder

# FAISS's default makes a batch of queries on a flat index no faster than one query at a time.
faiss.cvar.distance_compute_blas_threshold = 20


class Dense:
    def __init__(self, index: faiss.Index, encoder: Encoder) -> None:
        self._index = index
        self.encoder = encoder

    @classmethod
    def build(cls, texts: Sequence[str], encoder: Encoder) -> Dense:
        vectors = encoder.encode(texts, "passage")
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        return cls(index, encoder)

    @classmethod
    def load(cls, path: Path, encoder: Encoder) -> Dense:
        return cls(faiss.read_index(str(path)), encoder)

    def save(self, path: Path) -> None:
        faiss.write_index(self._index, str(path))

    def rank(self, queries: Sequence[str], k: int) -> list[list[tuple[int, float]]]:
        """(row, cosine) of the best passages of each query, ties in the order of the corpus."""
        if not queries:
            return []
        vectors, k = self.encoder.encode(queries, "query"), min(k, self._index.ntotal)
        # FAISS breaks ties as it likes: where one may reach past the k-th place, more is searched than was asked for.
        width = min(k + 1, self._index.ntotal)
        scores, rows = self._index.search(vectors, width)
        while width < self._index.ntotal and (scores[:, -1] == scores[:, k - 1]).any():
            width = min(2 * width, self._index.ntotal)
            scores, rows = self._index.search(vectors, width)
        hits = [
            [(int(row), float(score)) for row, score in zip(*of_query, strict=True) if row >= 0]  # −1: there was no further hit
            for of_query in zip(rows, scores, strict=True)
        ]
        return [sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k] for found in hits]
