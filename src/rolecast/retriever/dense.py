"""Dense retrieval: an exact FAISS inner-product index over a sentence encoder's vectors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rolecast.errors import ArtifactError, InputError

logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it reports every build of itself that it tries to load
import faiss  # noqa: E402

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Encoder

# FAISS's default makes a batch of queries on a flat index no faster than one query at a time.
faiss.cvar.distance_compute_blas_threshold = 20
Rows = npt.NDArray[np.int64]


class Dense:
    """`rows`: of each vector the passage that it is a piece of, ascending; None where every passage is one vector."""

    def __init__(self, index: faiss.Index, encoder: Encoder, rows: Rows | None = None) -> None:
        self._index, self._rows = index, rows
        self.encoder = encoder

    @classmethod
    def build(cls, parts: Iterable[npt.NDArray[np.float32]], encoder: Encoder, rows: Rows | None = None) -> Dense:
        """`parts`: the vectors of the passages or their pieces in order, at least one."""
        of_parts = iter(parts)
        first = next(of_parts)
        index = faiss.IndexFlatIP(first.shape[1])
        for vectors in chain([first], of_parts):
            index.add(vectors)
        return cls(index, encoder, rows)

    @classmethod
    def load(cls, path: Path, encoder: Encoder, passages: int) -> Dense:
        """`ArtifactError` if what lies there is no index of that many passages."""
        try:
            index = faiss.read_index(str(path))
        except RuntimeError:
            raise ArtifactError(f"{path} is no FAISS index, or not all of one; build or fetch it again") from None
        beside = rows_file(path)
        rows = np.load(beside) if beside.exists() else None
        held = index.ntotal if rows is None else len(np.unique(rows))
        if held != passages or (rows is not None and len(rows) != index.ntotal):
            raise ArtifactError(f"{path} has vectors of {held} passages and its corpus has {passages}; build the index again")
        return cls(index, encoder, rows)

    def save(self, path: Path) -> None:
        faiss.write_index(self._index, str(path))
        if self._rows is not None:
            np.save(rows_file(path), self._rows)

    def check(self) -> None:
        """Encodes a query, which loads the encoder. `InputError` if its vectors are not as wide as those of the index."""
        width = self.encoder.encode(["ready"], "query").shape[1]
        if width != self._index.d:
            raise InputError(
                f"the encoder {self.encoder.name} gives vectors of {width} numbers, the index holds {self._index.d}; "
                "name the encoder that it was built with by --encoder"
            )

    def rank(self, queries: Sequence[str], k: int) -> list[list[tuple[int, float]]]:
        """(row, cosine) of the best passages of each query, ties in the order of the corpus. A passage in pieces counts by its best."""
        if not queries:
            return []
        vectors = self.encoder.encode(queries, "query")
        k = min(k, self._index.ntotal if self._rows is None else int(self._rows[-1]) + 1)
        # FAISS breaks ties as it likes: where one may reach past the k-th place, more is searched than was asked for.
        width = min(k + 1, self._index.ntotal)
        while True:
            scores, rows = self._index.search(vectors, width)
            hits = [self._hits(*of_query) for of_query in zip(rows, scores, strict=True)]
            if width == self._index.ntotal or all(
                len(found) >= k and found[k - 1][1] > last for found, last in zip(hits, scores[:, -1], strict=True)
            ):
                return [sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k] for found in hits]
            width = min(2 * width, self._index.ntotal)

    def _hits(self, rows: npt.NDArray[np.int64], scores: npt.NDArray[np.float32]) -> list[tuple[int, float]]:
        """Best first; −1: there was no further hit."""
        found = [(int(row), float(score)) for row, score in zip(rows, scores, strict=True) if row >= 0]
        if self._rows is None:
            return found
        best: dict[int, float] = {}
        for row, score in found:
            best.setdefault(int(self._rows[row]), score)
        return list(best.items())


def rows_file(path: Path) -> Path:
    return path.with_name(f"{path.stem}.rows.npy")
