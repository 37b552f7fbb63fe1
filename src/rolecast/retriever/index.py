"""An index: a corpus with what the rankers need, as one artifact; and the in-process `Retriever` over it.

The rankers' libraries are imported where an index needs them: words alone need no FAISS, a client of the service needs neither.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
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
from rolecast.retriever.encoder import PACKAGED, Identity, Prefixes
from rolecast.retriever.footprint import needs_memory
from rolecast.retriever.hybrid import Ranking, depth, fused
from rolecast.retriever.passages import PassagesOnDisk, Texts
from rolecast.retriever.structure import Structure
from rolecast.retriever.vectors import Shown, encoded
from rolecast.retriever.windows import Built, Long, fitted
from rolecast.store.artifact import MANIFEST, committed, digest_of, verify, writing
from rolecast.types import Passage
from rolecast.wire.retriever import Shard

if TYPE_CHECKING:
    from rolecast.retriever.bm25 import BM25
    from rolecast.retriever.dense import Dense, Held, Searcher
    from rolecast.retriever.encoder import Encoder
    from rolecast.retriever.reranking import Reranker

Kind = Literal["bm25", "dense", "hybrid"]
KIND = "index"
FLAT = Structure()


def build_index(
    passages: Iterable[Passage], path: Path, kind: Kind, encoder: str = "minilm", analysis: Analysis = PLAIN,
    *, prefixes: Prefixes | None = None, long: Long = "cut", structure: Structure = FLAT, shown: Shown = lambda done, total: None,
    procs: int = 1,
) -> Built:  # fmt: skip
    """Writes the artifact `path`. `hybrid` holds both rankers, so it can also be opened as either.

    `passages`: an iterator is never in memory as a whole: its passages are read back from the artifact. BM25 takes all words at once.
    `prefixes`: by default the encoder's own. `long`: a text that outgrows the encoder's window is cut there, or split into pieces.
    `shown`: is told how many texts are encoded. `procs`: processes that encode. A build that was killed goes on after what it had encoded (`.NAME.vectors` beside `path`).
    """
    if isinstance(passages, Sequence) and not passages:
        raise InputError("the corpus is empty; an index needs at least one passage")
    lies = Path(encoder).resolve() if Path(encoder).is_dir() else None
    about: dict[str, Any] = {"kind": kind, "encoder": lies.name if lies else encoder}
    place = str(lies or encoder) if lies or kind != "bm25" else None  # from wherever the index is opened on this machine
    made: dict[str, Any] = {"kind": kind, "encoder": place}
    built, kept = Built(), path.with_name(f".{path.name}.vectors")
    with writing(path, KIND, made) as partial:
        write_corpus(partial / "corpus.jsonl", passages)
        held = passages if isinstance(passages, Sequence) else PassagesOnDisk(partial / "corpus.jsonl")
        texts, titles = Texts(held, _indexed), Texts(held, lambda passage: passage.title)
        made["passages"] = len(held)
        if kind != "dense":
            _bm25().build(list(texts), analysis, list(titles)).save(partial / "bm25")
            if analysis != PLAIN:  # an index of plain words is the same artifact as ever
                about["analysis"] = analysis.model_dump()
        if kind != "bm25":
            dense, model = _dense(), _encoder(encoder, prefixes)
            pieces, rows, built = fitted(texts, titles, model, long)
            given = iter([shown])  # vectors that are read a second time were made before
            parts = lambda: encoded(pieces, model, kept, next(given, _silent), structure.stored, procs)  # noqa: E731
            dense.write(parts, len(pieces), partial / "dense.faiss", structure, rows, kept)
            about |= {"prefixes": model.prefixes.model_dump(), "identity": model.identity().record(), "long": long}
            if structure != FLAT:
                about["structure"] = structure.record()
            made |= asdict(built)
        elif lies or prefixes is not None:
            about["prefixes"] = _encoder(encoder, prefixes).prefixes.model_dump()
        (partial / "index.json").write_text(json.dumps(about))
    shutil.rmtree(kept, ignore_errors=True)
    return built


def _silent(done: int, total: int) -> None:
    pass


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


def _encoder(name: str, prefixes: Prefixes | None = None) -> Encoder:
    from rolecast.retriever.encoder import Encoder

    return Encoder(name) if prefixes is None else Encoder(name, prefixes)


def _same_encoder(path: Path, built: Mapping[str, Any], name: str) -> Encoder:
    """The encoder at `name`, if it is the one that the index was built with. Indexes of before do not say which that was."""
    legacy = Prefixes.by_name(built["encoder"]) if name != PACKAGED else None
    encoder = _encoder(name, Prefixes(**built["prefixes"]) if "prefixes" in built else legacy)
    if "identity" in built and (differ := encoder.identity().differences(Identity(**built["identity"]))):
        raise InputError(
            f"the encoder {name} is not the one that {path} was built with (other {', '.join(differ)}); "
            "name that one by --encoder (retriever.encoder), or build the index again"
        )
    return encoder


def all_found(ids: Sequence[str], found: Sequence[Passage | None]) -> list[Passage]:
    """`InputError` names the first id that is not there."""
    if None in found:
        raise InputError(f"no passage {ids[found.index(None)]!r} in the index")
    return [passage for passage in found if passage is not None]


class LocalRetriever:
    """`Retriever` in this process. `encoder`: whose vectors `embed` gives, of an index of words, which makes it when it is asked."""

    def __init__(
        self, passages: Sequence[Passage], kind: Kind, bm25: BM25 | None, dense: Dense | None, digest: str = "",
        encoder: Callable[[], Encoder] | None = None, reranker: Reranker | None = None, shard: Shard | None = None,
        built_with: str = "",
    ) -> None:  # fmt: skip
        """`shard`: which part of a larger index this is. `built_with`: a digest of what made its vectors, empty where it does not say."""
        self.passages = passages
        self.kind = kind
        self.reranker, self.shard, self.built_with = reranker, shard, built_with
        self._digest = digest
        self._row_of = passages.row_of if isinstance(passages, PassagesOnDisk) else {p.id: row for row, p in enumerate(passages)}.get
        self._bm25, self._dense, self._encoder = bm25, dense, encoder or (lambda: _encoder("minilm"))

    @classmethod
    def open(
        cls, path: Path, kind: Kind | None = None, encoder: str | None = None, held: Held = "memory", searcher: Searcher = "faiss"
    ) -> LocalRetriever:
        """`kind` defaults to what the index was built as, `encoder` to where that was when it was built. What is opened can be searched:
        an encoder that is missing or another one is refused here, and is loaded once this returns. `held`: where passages and vectors
        stay; what does not fit into memory is refused before it is read. `searcher`: of vectors, as `Dense.load` has it.
        """
        if committed(path):
            needs_memory(path, held)
        manifest = verify(path, KIND)
        built = json.loads((path / "index.json").read_text())
        kind = kind or built["kind"]
        if built["kind"] not in (kind, "hybrid"):
            raise InputError(f"{path} is a {built['kind']} index and cannot serve {kind}; build it with --kind {kind} or hybrid")
        passages = PassagesOnDisk(path / "corpus.jsonl") if held == "disk" else read_corpus(path / "corpus.jsonl")
        bm25 = dense = None
        if kind != "dense":
            bm25 = _bm25().load(path / "bm25", len(passages), Analysis(**built["analysis"]) if "analysis" in built else PLAIN)
        name = encoder or manifest.get("provenance", {}).get("encoder") or built["encoder"]
        if kind != "bm25":
            dense = _dense().load(path / "dense.faiss", _same_encoder(path, built, name), len(passages), held, searcher)
            dense.check()
        shard = Shard(**built["shard"]) if "shard" in built else None
        made_by = digest_of(json.dumps([built["identity"], built["prefixes"]]).encode()) if "identity" in built else ""
        digest = digest_of((path / MANIFEST).read_bytes())
        return cls(passages, kind, bm25, dense, digest, lambda: _same_encoder(path, built, name), shard=shard, built_with=made_by)

    async def info(self) -> IndexInfo:
        return IndexInfo(self.kind, self._digest)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if k < 1:
            raise InputError(f"k = {k}; ask for at least one passage")
        deep = k if self.reranker is None else max(k, self.reranker.depth)
        deep = min(deep, len(self.passages))
        ranked = [fused(rankings, deep) for rankings in self.rankings(queries, depth(self.rankers, deep))]
        found = [[self._passage(row, score) for row, score in ranking] for ranking in ranked]
        if self.reranker is None:
            return found
        return [self.reranker(query, passages, k) for query, passages in zip(queries, found, strict=True)]

    @property
    def rankers(self) -> int:
        return (self._bm25 is not None) + (self._dense is not None)

    def rankings(self, queries: Sequence[str], deep: int) -> list[tuple[Ranking, ...]]:
        """Of each query the first `deep` hits of each ranker: by words, then by meaning."""
        of_all: list[list[Ranking]] = []
        if self._bm25 is not None:
            bm25 = self._bm25
            of_all.append([list(zip(*bm25.rank(query, deep), strict=True)) for query in queries])
        if self._dense is not None:
            of_all.append(list(self._dense.rank(queries, deep)))
        return list(zip(*of_all, strict=True))

    def passages_of(self, ids: Sequence[str]) -> list[Passage | None]:
        """None for an id that the index lacks."""
        return [None if row is None else self.passages[row] for row in map(self._row_of, ids)]

    def _passage(self, row: int, score: float) -> Passage:
        passage = self.passages[row]
        return Passage(passage.id, passage.title, passage.text, float(score))

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        return all_found(ids, self.passages_of(ids))

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return self._embeddings.of(texts)

    @cached_property
    def _embeddings(self) -> Embeddings:
        return Embeddings(self._dense.encoder if self._dense is not None else self._encoder())
