"""Dense retrieval: a FAISS inner-product index over a sentence encoder's vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from rolecast.errors import ArtifactError, InputError
from rolecast.retriever.building import Parts, write_index
from rolecast.retriever.library import faiss
from rolecast.retriever.structure import Structure

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Encoder

Rows = npt.NDArray[np.int64]
Held = Literal["memory", "disk"]
Searcher = Literal["auto", "faiss", "torch"]
# Of a score: the last bits of a product hang on the processor and on what else is asked in its batch, and equal passages are to tie.
DIGITS = 6


class Searched(Protocol):
    """What finds vectors: `d` numbers each, `ntotal` of them."""

    d: int
    ntotal: int

    def search(self, vectors: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Scores (queries, k), best first, and rows; row −1: there was no further hit."""


class Dense:
    """`rows`: of each vector the passage that it is a piece of, ascending; None where every passage is one vector. `exact`: no neighbour is
    missed."""

    def __init__(self, index: Searched, encoder: Encoder, rows: Rows | None = None, exact: bool = True) -> None:
        self._index, self._rows, self._exact = index, rows, exact
        self.encoder = encoder

    @staticmethod
    def write(parts: Parts, total: int, path: Path, structure: Structure, rows: Rows | None = None, parts_at: Path | None = None) -> None:
        """`parts`: the `total` vectors of the passages or their pieces in order, at least one; they lie at `parts_at` meanwhile."""
        write_index(parts, total, path, structure, parts_at)
        if rows is not None:
            np.save(rows_file(path), rows)

    @classmethod
    def load(cls, path: Path, encoder: Encoder, passages: int, held: Held = "memory", searcher: Searcher = "faiss") -> Dense:
        """`searcher`: auto takes torch where the index is flat and a GPU is there. `held` on disk: pages of the file come into memory as searches touch them, and go again. `ArtifactError` if what lies there is no
        index of that many passages.
        """
        index: Any = read_index(path, "disk")
        by_torch = searcher == "torch" or (searcher == "auto" and is_flat(index) and _gpus())
        if held == "memory" and not by_torch:
            index = read_index(path)
        beside = rows_file(path)
        rows = np.load(beside, mmap_mode="r" if held == "disk" else None) if beside.exists() else None
        vectors = index.ntotal if rows is None else len(np.unique(rows))
        if vectors != passages or (rows is not None and len(rows) != index.ntotal):
            raise ArtifactError(f"{path} has vectors of {vectors} passages and its corpus has {passages}; build the index again")
        if not by_torch:
            return cls(index, encoder, rows, is_flat(index))
        from rolecast.retriever.exact import on_gpus

        return cls(on_gpus(vectors_of(index, path)), encoder, rows)

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
            scores = np.round(scores.astype(np.float64), DIGITS)
            hits = [self._hits(*of_query) for of_query in zip(rows, scores, strict=True)]
            if width == self._index.ntotal or all(map(self._settled, hits, rows[:, -1], scores[:, -1], [k] * len(hits))):
                return [sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k] for found in hits]
            width = min(2 * width, self._index.ntotal)

    def _settled(self, found: Sequence[tuple[int, float]], row: int, score: float, k: int) -> bool:
        """Whether a wider search would change the first k. One that misses neighbours may end early, and promises nothing about ties."""
        if not self._exact:
            return row < 0 or len(found) >= k
        return len(found) >= k and found[k - 1][1] > score

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


def read_index(path: Path, held: Held = "memory") -> Any:
    """`ArtifactError` if what lies there is no FAISS index."""
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if held == "disk" else 0)
    except RuntimeError:
        raise ArtifactError(f"{path} is no FAISS index, or not all of one; build or fetch it again") from None


def is_flat(index: Any) -> bool:
    return isinstance(index, (faiss.IndexFlat, faiss.IndexScalarQuantizer))


def vectors_of(index: Any, path: Path) -> npt.NDArray[Any]:
    """The vectors (n, d) of a flat index, float32 or float16, where they lie: they go with it. `InputError` for one that is not flat."""
    half = isinstance(index, faiss.IndexScalarQuantizer) and index.sq.qtype == faiss.ScalarQuantizer.QT_fp16
    if not half and not isinstance(index, faiss.IndexFlat):
        raise InputError(f"{path} is not flat, and torch searches flat ones; build it with --structure flat, or give --searched-by faiss")
    codes = faiss.rev_swig_ptr(index.codes.data(), index.codes.size())
    return codes.view(np.float16 if half else np.float32).reshape(index.ntotal, index.d)


def _gpus() -> bool:
    import torch

    return torch.cuda.is_available()
