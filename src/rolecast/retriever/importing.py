"""FAISS indexes that others built, taken in as artifacts of ours after they were held against their corpus.

Search-R1's wiki-18: one file, or the parts `part_aa`, `part_ab`, … that `cat` puts together; row n of it is line n of a corpus of
{id, contents}, and what was encoded is `contents`. Pyserini: a folder with `index` and `docid`, the id of each row on a line; its corpus names
passages by these ids, in any order, and what was encoded is its text, or title and text.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rolecast.data.jsonl import json_lines
from rolecast.data.records import iter_corpus, write_corpus
from rolecast.errors import InputError
from rolecast.retriever.dense import is_flat, read_index
from rolecast.retriever.index import KIND
from rolecast.retriever.library import faiss
from rolecast.retriever.passages import PassagesOnDisk
from rolecast.room import require_disk
from rolecast.store.artifact import writing
from rolecast.types import Passage
from rolecast.wire.retriever import contents

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Encoder, Prefixes

Layout = Literal["search_r1", "pyserini"]
SAMPLE = 32  # passages that are encoded again
ALIKE = 0.98  # cosine of a vector and of the same text encoded again; float16 and other kernels move the fourth digit
FOUND = 10  # of an index that keeps no vectors: the passage is among the first, for itself


@dataclass(frozen=True, slots=True)
class Imported:
    """`checked`: passages that were encoded again; 0 where the encoder is not here."""

    passages: int
    width: int
    checked: int


def import_index(
    layout: Layout, source: Path, corpus: Path, path: Path, name: str, encoder: Encoder | None, prefixes: Prefixes | None = None
) -> Imported:
    """Writes the artifact `path`. `name`: the encoder as the index will be opened with it; `encoder`: that, where it is here; `prefixes`: what
    the index is to hold of one that is not.

    `InputError` if the index is not one of inner products, not of this corpus, or not of this encoder.
    """
    files = _files(layout, source)
    require_disk(f"importing {source}", sum(file.stat().st_size for file in files) + 2 * corpus.stat().st_size, path, "make room there")
    made: dict[str, Any] = {"kind": "dense", "encoder": name, "imported": layout}
    with writing(path, KIND, made) as partial:
        with (partial / "dense.faiss").open("wb") as out:
            for file in files:
                with file.open("rb") as part:
                    shutil.copyfileobj(part, out, 2**24)
        index = read_index(partial / "dense.faiss", "disk")
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(f"{source} measures distances, not inner products; build it again with METRIC_INNER_PRODUCT")
        write_corpus(partial / "corpus.jsonl", _in_order(layout, source, corpus))
        passages = PassagesOnDisk(partial / "corpus.jsonl")
        _same_count(layout, source, corpus, index.ntotal, len(passages))
        about: dict[str, Any] = {"kind": "dense", "encoder": name, "long": "cut"}
        checked = 0
        if encoder is not None:
            checked = _check(index, passages, encoder, source, _FORMS[layout])
            about |= {"prefixes": encoder.prefixes.model_dump(), "identity": encoder.identity().record()}
        elif prefixes is not None:
            about["prefixes"] = prefixes.model_dump()
        made |= {"passages": len(passages), "vectors": index.ntotal, "checked": checked}
        (partial / "index.json").write_text(json.dumps(about))
        width = int(index.d)
    return Imported(len(passages), width, checked)


def _files(layout: Layout, source: Path) -> Sequence[Path]:
    """The index in its parts, in order."""
    if layout == "pyserini":
        missing = [name for name in ("index", "docid") if not (source / name).is_file()]
        if missing:
            raise InputError(f"{source} has no file {missing[0]!r}; name the folder of an index of Pyserini's, with `index` and `docid`")
        return [source / "index"]
    parts = sorted(source.glob("part_*")) if source.is_dir() else [source] if source.is_file() else []
    if not parts:
        raise InputError(f"{source} is no index of Search-R1's; name e5_Flat.index, or the folder with part_aa, part_ab, …")
    return parts


def _in_order(layout: Layout, source: Path, corpus: Path) -> Iterator[Passage]:
    """The passages, one for each row of the index."""
    if layout == "search_r1":
        return iter_corpus(corpus)
    ids = (source / "docid").read_text().splitlines()
    by_id = {passage.id: passage for passage in iter_corpus(corpus)}
    if absent := next((id for id in ids if id not in by_id), None):
        raise InputError(f"{corpus} has no passage {absent!r}, which {source / 'docid'} names; name the corpus that the index was built of")
    return iter([by_id[id] for id in ids])


def _same_count(layout: Layout, source: Path, corpus: Path, vectors: int, passages: int) -> None:
    """A row that is empty or a repetition has a vector in the index and is no passage here: rows behind it would be taken for others."""
    if vectors == passages:
        return
    what = f"{source / 'docid'} has {passages} ids" if layout == "pyserini" else f"{corpus} has {passages} passages"
    lines = sum(1 for _ in json_lines(corpus)) if layout == "search_r1" else passages
    left_out = f" ({lines - passages} of its {lines} rows are empty or there twice)" if lines != passages else ""
    raise InputError(f"{source} holds {vectors} vectors and {what}{left_out}; name the corpus that the index was built of")


def _check(index: Any, passages: PassagesOnDisk, encoder: Encoder, source: Path, forms: Sequence[Callable[[Passage], str]]) -> int:
    """Encodes passages at even distances again, in each form that builders of this layout give a passage, and holds them against their rows."""
    rows = np.unique(np.linspace(0, len(passages) - 1, min(SAMPLE, len(passages))).round().astype(np.int64))
    sample = [passages[int(row)] for row in rows]
    faults = []
    for form in forms:
        made = encoder.encode([form(passage) for passage in sample], "passage")
        if made.shape[1] != index.d:
            raise InputError(
                f"the encoder {encoder.name} gives vectors of {made.shape[1]} numbers, {source} holds {index.d}; name the one it was built with"
            )
        wrong, how = _differing(index, rows, made)
        if not len(wrong):
            return len(rows)
        faults.append((len(wrong), int(wrong[0]), how))
    count, row, how = min(faults)
    raise InputError(
        f"{source}: passage {passages[row].id!r}, encoded again, is {how} ({count} of {len(rows)} passages differ); "
        "name the corpus, the encoder and the prefixes that the index was built with"
    )


def _differing(index: Any, rows: npt.NDArray[np.int64], made: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int64], str]:
    """The rows that hold other vectors, and how that shows."""
    if is_flat(index):
        alike = (np.stack([index.reconstruct(int(row)) for row in rows]) * made).sum(axis=1)
        return rows[alike < ALIKE], f"cosine {alike.min():.2f} with what it holds, at least {ALIKE} expected"
    _, found = index.search(made, FOUND)  # codes, or lists: there is no vector to be had
    wrong = rows[~(found == rows[:, None]).any(axis=1)]
    return wrong if len(wrong) > len(rows) // 10 else wrong[:0], f"not among the first {FOUND} for itself"  # a few may be missed


_FORMS: dict[Layout, tuple[Callable[[Passage], str], ...]] = {
    "search_r1": (lambda passage: contents(passage.title, passage.text),),
    "pyserini": (
        lambda passage: f"{passage.title} {passage.text}",
        lambda passage: f"{passage.title}\n{passage.text}",
        lambda passage: passage.text,
    ),
}
