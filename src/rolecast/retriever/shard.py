"""An index cut into shards: consecutive runs of its passages, each an index of its own that knows which part of which whole it is.

Words keep the weights that they have in the whole corpus, so scores of one query compare over shards, by words as by meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rolecast.data.records import write_corpus
from rolecast.errors import InputError
from rolecast.retriever.passages import PassagesOnDisk
from rolecast.store.artifact import MANIFEST, digest_of, verify, writing
from rolecast.wire.retriever import Shard

PART = 2**16  # vectors that are copied at once


def split(path: Path, shards: int, place: Callable[[int], AbstractContextManager[Path]]) -> list[int]:
    """Writes the committed index at `path` as `shards` artifacts, shard n where `place(n)` says; how many passages each has.

    `InputError` if it cannot be cut: its vectors are not flat, or it has fewer passages than that.
    """
    from rolecast.retriever.analysis import PLAIN, Analysis
    from rolecast.retriever.index import KIND

    made = verify(path, KIND)["provenance"]
    built = json.loads((path / "index.json").read_text())
    passages = PassagesOnDisk(path / "corpus.jsonl")
    if shards > len(passages):
        raise InputError(f"{path} has {len(passages)} passages; cut it into at most as many shards")
    if "shard" in built:
        raise InputError(f"{path} is a shard itself; cut the index that it was cut from")
    whole = digest_of((path / MANIFEST).read_bytes())
    bm25 = dense = None
    if built["kind"] != "dense":
        from rolecast.retriever.bm25 import BM25

        bm25 = BM25.load(path / "bm25", len(passages), Analysis(**built["analysis"]) if "analysis" in built else PLAIN)
    if built["kind"] != "bm25":
        dense = _flat(path)
    bounds = [len(passages) * number // shards for number in range(shards + 1)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        shard = Shard(number=number, of=shards, first=start, passages=len(passages), whole=whole)
        provenance = {**made, "passages": end - start, "shard": shard.model_dump()}
        with place(number) as out, writing(out, KIND, provenance) as partial:
            write_corpus(partial / "corpus.jsonl", (passages[row] for row in range(start, end)))
            if bm25 is not None:
                bm25.part(start, end).save(partial / "bm25")
            if dense is not None:
                _write_vectors(path, dense, start, end, built, partial / "dense.faiss")
            (partial / "index.json").write_text(json.dumps({**built, "shard": shard.model_dump()}))
    passages.close()
    return [end - start for start, end in pairwise(bounds)]


def _flat(path: Path) -> Any:
    from rolecast.retriever.dense import is_flat, read_index

    index = read_index(path / "dense.faiss", "disk")
    if not is_flat(index):
        raise InputError(f"{path} is not flat, and its graph or lists cannot be cut; build it with --structure flat")
    return index


def _write_vectors(path: Path, index: Any, start: int, end: int, built: dict[str, Any], out: Path) -> None:
    """Those of the passages from `start` up to `end`, each the vectors of all its pieces."""
    from rolecast.retriever.dense import rows_file, vectors_of
    from rolecast.retriever.flat_file import write_flat
    from rolecast.retriever.library import faiss
    from rolecast.retriever.structure import Structure

    structure = Structure(**built.get("structure", {}))
    if rows_file(path / "dense.faiss").exists():
        rows = np.load(rows_file(path / "dense.faiss"), mmap_mode="r")
        first, last = (int(np.searchsorted(rows, row)) for row in (start, end))
        np.save(rows_file(out), rows[first:last] - start)
    else:
        first, last = start, end
    vectors = vectors_of(index, path)
    empty = faiss.index_factory(index.d, structure.factory(last - first, index.d), faiss.METRIC_INNER_PRODUCT)
    parts = (vectors[at : min(at + PART, last)] for at in range(first, last, PART))
    write_flat(parts, out, faiss.serialize_index(empty).tobytes(), structure.stored)
