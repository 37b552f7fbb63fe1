"""BM25 over bm25s. Ties are broken by corpus order, so that the same index gives the same ranking everywhere."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rolecast.errors import ArtifactError, InputError
from rolecast.retriever.analysis import PLAIN, Analysis, make_analyser

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # bm25s imports JAX where it finds it, and JAX takes three quarters of a GPU's memory

import bm25s

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs its own steps at DEBUG, whatever the root level


class BM25:
    """Row indices and scores of the best passages for a query."""

    def __init__(self, index: bm25s.BM25, analysis: Analysis = PLAIN) -> None:
        self._index, self._analysis, self._analyser = index, analysis, make_analyser(analysis)

    @classmethod
    def build(cls, texts: Sequence[str], analysis: Analysis = PLAIN, titles: Sequence[str] | None = None) -> BM25:
        """`titles`: of the passages, whose texts begin with them; none by default."""
        analyser = make_analyser(analysis)
        words = [analyser.passage(text, title) for text, title in zip(texts, titles or [""] * len(texts), strict=True)]
        if not any(words):
            raise InputError("no passage has a word to search for, only stop words or none; check the corpus, or build with --kind dense")
        # Numbered as they first come: of a set, as bm25s would have it, every process makes another index of the same corpus.
        numbers = {word: number for number, word in enumerate(dict.fromkeys(word for text in words for word in text))}
        index = bm25s.BM25(k1=analysis.k1, b=analysis.b)
        index.index(([[numbers[word] for word in text] for text in words], numbers), show_progress=False)
        return cls(index, analysis)

    @classmethod
    def load(cls, path: Path, passages: int, analysis: Analysis = PLAIN) -> BM25:
        """`ArtifactError` if what lies there is no index of that many passages."""
        try:
            index = bm25s.BM25.load(str(path))
            held = index.scores["num_docs"]
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise ArtifactError(f"{path} is no index of bm25s ({type(error).__name__}); build or fetch it again") from None
        if held != passages:
            raise ArtifactError(f"{path} is of {held} passages and its corpus has {passages}; build the index again")
        return cls(index, analysis)

    def part(self, start: int, end: int) -> BM25:
        """Of the passages from `start` up to `end`, with the weights that words have in the whole corpus: scores of parts compare."""
        held = self._index.scores
        words = len(held["indptr"]) - 1
        within = (held["indices"] >= start) & (held["indices"] < end)
        counts = np.bincount(np.repeat(np.arange(words), np.diff(held["indptr"]))[within], minlength=words)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(held["indptr"].dtype)
        index = copy.copy(self._index)
        index.scores = {"data": held["data"][within], "indices": held["indices"][within] - start, "indptr": indptr, "num_docs": end - start}
        return BM25(index, self._analysis)

    def save(self, path: Path) -> None:
        self._index.save(str(path), show_progress=False)

    def rank(self, query: str, k: int) -> tuple[list[int], list[float]]:
        """Rows that share at least one word with the query, best first."""
        known = [word for word in self._analyser.query(query) if word in self._index.vocab_dict]
        if not known:
            return [], []
        scores = self._index.get_scores(known)
        rows = np.flatnonzero(scores > 0)  # numpy's selection takes milliseconds among thousands of equal numbers, which zeros are
        if len(rows) > k:
            found = scores[rows]
            rows = rows[found >= np.partition(found, -k)[-k]]
        rows = rows[np.argsort(-scores[rows], kind="stable")][:k]
        return rows.tolist(), scores[rows].tolist()
