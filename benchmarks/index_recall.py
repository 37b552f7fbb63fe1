"""What the structures of a dense index find of what the flat one finds, what they take, and how long a search is.

    python benchmarks/index_recall.py --corpus corpus.jsonl.gz --questions dev.jsonl [--passages 4000] [--k 10] [--encoder minilm]
    python benchmarks/index_recall.py --index INDEX --questions dev.jsonl …

The first passages of the corpus are encoded once, or the vectors of a committed flat index are taken; each structure is built of the same vectors and asked the same questions, one at a time
and on as many threads as OMP_NUM_THREADS says. Recall: of the flat float32 index's first k, how many are among the structure's first k.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rolecast.data.jsonl import json_lines
from rolecast.data.records import iter_corpus
from rolecast.retriever.building import write_index
from rolecast.retriever.dense import read_index, vectors_of
from rolecast.retriever.encoder import Encoder
from rolecast.retriever.index import _indexed
from rolecast.retriever.structure import Structure

PART = 1024


def structures(vectors: int) -> Iterator[Structure]:
    yield Structure()
    yield Structure(stored="float16")
    for beam in (16, 32, 64, 128):
        yield Structure(form="hnsw", ef_search=beam)
    for probes in (1, 4, 8, 16, 32):
        yield Structure(form="ivf_flat", nprobe=probes)
    yield Structure(form="ivf_pq")
    yield Structure(form="ivf_pq", code_bytes=96)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--corpus", type=Path)
    given.add_argument("--index", type=Path)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=4000)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--encoder", default="minilm")
    options = parser.parse_args()
    encoder = Encoder(options.encoder)
    if options.index:
        file = options.index / "dense.faiss"
        index = read_index(file)
        passages = np.array(vectors_of(index, file), dtype=np.float32)
    else:
        texts = [_indexed(passage) for passage in itertools.islice(iter_corpus(options.corpus), options.passages)]
        passages = encoder.encode(texts, "passage")
    asked = encoder.encode([str(row["question"]) for _, row in json_lines(options.questions)], "query")
    print(f"{len(passages)} passages × {passages.shape[1]}, {len(asked)} questions, k = {options.k}")
    print(f"{'structure':<60}{'recall':>8}{'ms/query':>10}{'build s':>9}{'MB':>8}")
    nearest: npt.NDArray[np.int64] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for structure in structures(len(passages)):
            found, line = measured(passages, asked, options.k, structure, Path(folder) / "dense.faiss", nearest)
            nearest = found if nearest is None else nearest
            print(line, flush=True)


def measured(
    passages: npt.NDArray[np.float32], asked: npt.NDArray[np.float32], k: int, structure: Structure, path: Path, nearest: Any
) -> tuple[npt.NDArray[np.int64], str]:
    begun = time.perf_counter()
    stored = (passages[at : at + PART].astype(structure.stored) for at in range(0, len(passages), PART))
    parts = list(stored)
    write_index(lambda: iter(parts), len(passages), path, structure)
    built = time.perf_counter() - begun
    index, rows, seconds = read_index(path), [], []
    for query in asked:
        begun = time.perf_counter()
        rows.append(index.search(query[None], k)[1][0])
        seconds.append(time.perf_counter() - begun)
    found = np.stack(rows)
    hit = 1.0 if nearest is None else float(np.mean([len({*a} & {*b}) / k for a, b in zip(found, nearest, strict=True)]))
    name = " ".join(f"{key}={value}" for key, value in structure.record().items()) or "flat float32"
    return found, f"{name:<60}{hit:>8.4f}{1000 * statistics.median(seconds):>10.3f}{built:>9.1f}{path.stat().st_size / 1e6:>8.1f}"


if __name__ == "__main__":
    main()
