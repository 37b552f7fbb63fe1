"""An index: a corpus with what the rankers need, as one artifact; and the in-process `Retriever` over it.

The rankers' libraries are imported where an index needs them: words alone need no FAISS, a client of the service needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rolecast.data.records import read_corpus, write_corpus
from rolecast.errors import InputError
from rolecast.installed import needing
from rolecast.ports import IndexInfo
from rolecast.retriever.analysis import PLAIN, Analysis
from rolecast.retriever.embeddings import Embeddings
from rolecast.retriever.hybrid import reciprocal_rank
from rolecast.store.artifact import MANIFEST, digest_of, verify, writing
from rolecast.types import Passage

if TYPE_CHECKING:
    from rolecast.retriever.bm25 import BM25
    from rolecast.retriever.dense import Dense
    from rolecast.retriever.encoder import Encoder

Kind = Literal["bm25", "dense", "hybrid"]
KIND = "index"


def build_index(passages: Sequence[Passage], path: Path, kind: Kind, encoder: str = "minilm", analysis: Analysis = PLAIN) -> None:
    """Writes the artifact `path`. `hybrid` holds both rankers, so it can also be opened as either."""
    if not passages:
        raise InputError("the corpus is empty; an index needs at least one passage")
    texts = [_indexed(passage) for passage in passages]
    with writing(path, KIND, {"kind": kind, "encoder": encoder if kind != "bm25" else None, "passages": len(passages)}) as partial:
        write_corpus(partial / "corpus.jsonl", passages)
        if kind in ("bm25", "hybrid"):
            _bm25().build(texts, analysis, [passage.title for passage in passages]).save(partial / "bm25")
        if kind in ("dense", "hybrid"):
            _dense().build(texts, _encoder(encoder)).save(partial / "dense.faiss")
        about: dict[str, Any] = {"kind": kind, "encoder": encoder}
        if kind != "dense" and analysis != PLAIN:  # an index of plain words is the same artifact as ever
            about["analysis"] = analysis.model_dump()
        (partial / "index.json").write_text(json.dumps(about))


def _indexed(passage: Passage) -> str:
    """What is searched: title and text. A passage about an entity thereby outranks one that only mentions it."""
    return f"{passage.title}. {passage.text}" if passage.title else passage.text


def _bm25() -> type[BM25]:
    with needing("retriever"):
        from rolecast.retriever.bm25 import BM25
    return BM25


def _dense() -> type[Dense]:
    with needing("retriever"):
        from rolecast.retriever.dense import Dense
    return Dense


def _encoder(name: str) -> Encoder:
    from rolecast.retriever.encoder import Encoder

    return Encoder(name)


class LocalRetriever:
    """`Retriever` in this process. `encoder`: by name, whose vectors `embed` gives; an index of words loads it when it is asked."""

    def __init__(
        self, passages: Sequence[Passage], kind: Kind, bm25: BM25 | None, dense: Dense | None, digest: str = "", encoder: str = "minilm"
    ) -> None:
        self.passages = passages
        self.kind = kind
        self._digest = digest
        self._by_id = {passage.id: passage for passage in passages}
        self._bm25, self._dense, self._encoder = bm25, dense, encoder

    @classmethod
    def open(cls, path: Path, kind: Kind | None = None) -> LocalRetriever:
        """`kind` defaults to what the index was built as."""
        verify(path, KIND)
        built = json.loads((path / "index.json").read_text())
        kind = kind or built["kind"]
        if built["kind"] not in (kind, "hybrid"):
            raise InputError(f"{path} is a {built['kind']} index and cannot serve {kind}; build it with --kind {kind} or hybrid")
        bm25 = _bm25().load(path / "bm25", Analysis(**built["analysis"]) if "analysis" in built else PLAIN) if kind != "dense" else None
        dense = _dense().load(path / "dense.faiss", _encoder(built["encoder"])) if kind != "bm25" else None
        digest = digest_of((path / MANIFEST).read_bytes())
        return cls(read_corpus(path / "corpus.jsonl"), kind, bm25, dense, digest, built["encoder"])

    async def info(self) -> IndexInfo:
        return IndexInfo(self.kind, self._digest)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if k < 1:
            raise InputError(f"k = {k}; ask for at least one passage")
        return [[self._passage(row, score) for row, score in ranking] for ranking in self._rank(queries, min(k, len(self.passages)))]

    def _rank(self, queries: Sequence[str], k: int) -> list[list[tuple[int, float]]]:
        if self._dense is None:
            assert self._bm25 is not None
            return [list(zip(*self._bm25.rank(query, k), strict=True)) for query in queries]
        by_meaning = self._dense.rank(queries, k if self._bm25 is None else 4 * k)
        if self._bm25 is None:
            return by_meaning
        fused = []
        for query, dense in zip(queries, by_meaning, strict=True):
            by_words, _ = self._bm25.rank(query, 4 * k)
            fused.append(reciprocal_rank([by_words, [row for row, _ in dense]])[:k])
        return fused

    def _passage(self, row: int, score: float) -> Passage:
        passage = self.passages[row]
        return Passage(passage.id, passage.title, passage.text, float(score))

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        unknown = [id for id in ids if id not in self._by_id]
        if unknown:
            raise InputError(f"no passage {unknown[0]!r} in the index")
        return [self._by_id[id] for id in ids]

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return self._embeddings.of(texts)

    @cached_property
    def _embeddings(self) -> Embeddings:
        return Embeddings(self._dense.encoder if self._dense is not None else _encoder(self._encoder))
