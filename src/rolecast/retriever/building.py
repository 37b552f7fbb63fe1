"""Vectors to the file of a FAISS index, in the structure that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rolecast.retriever.flat_file import write_flat
from rolecast.retriever.library import faiss
from rolecast.retriever.structure import Structure
from rolecast.room import require_disk, require_memory

Vectors = npt.NDArray[Any]  # float32, or float16 where the structure stores that
Parts = Callable[[], Iterator[Vectors]]  # the same ones in the same order, as often as it is asked


def write_index(parts: Parts, total: int, path: Path, structure: Structure, parts_at: Path | None = None) -> None:
    """`parts`: `total` vectors in order, at least one; they lie at `parts_at` meanwhile. `InputError` before the work of hours, if memory or disk will not do for it."""
    of_parts = parts()
    first = next(of_parts)
    width = first.shape[1]
    what = f"an index of {total:,} × {width} ({structure.form}, {structure.stored})"
    require_memory(f"building {what}", structure.bytes_in_memory(total, width), "take flat, float16 or ivf_pq, or a larger machine")
    already = sum(len(vectors) for vectors in (first,)) * first.itemsize * width
    require_disk(
        what, structure.bytes_on_disk(total, width) - already, path, "make room there, take float16 or ivf_pq, or name another place"
    )
    index = faiss.index_factory(width, structure.factory(total, width), faiss.METRIC_INNER_PRODUCT)
    if structure.form == "flat":
        write_flat(chain([first], of_parts), path, faiss.serialize_index(index).tobytes(), structure.stored)
        return
    _set(index, structure)
    if structure.trained:
        index.train(_sample(chain([first], of_parts), total, structure.sample(total)))
        first, of_parts = np.empty((0, width), np.float32), parts()
    for vectors in chain([first], of_parts):
        index.add(np.ascontiguousarray(vectors, dtype=np.float32))
    faiss.write_index(index, str(path))


def _set(index: Any, structure: Structure) -> None:
    """What lies in the file beside the vectors, so that a search needs to be told nothing."""
    if structure.form == "hnsw":
        index.hnsw.efConstruction, index.hnsw.efSearch = structure.ef_construction, structure.ef_search
    else:
        index.nprobe = min(structure.nprobe, index.nlist)


def _sample(parts: Iterator[Vectors], total: int, size: int) -> npt.NDArray[np.float32]:
    """Vectors at even distances: a corpus is often ordered by what it is about."""
    wanted = np.linspace(0, total - 1, size).round().astype(np.int64)
    taken, at = [], 0
    for vectors in parts:
        here = wanted[(wanted >= at) & (wanted < at + len(vectors))] - at
        taken.append(vectors[here].astype(np.float32))
        at += len(vectors)
    return np.concatenate(taken)
