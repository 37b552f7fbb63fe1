"""Structures of vectors: what is written, what is found, what is refused before it is built."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from rolecast import room
from rolecast.cli import data
from rolecast.data.records import write_corpus
from rolecast.errors import InputError
from rolecast.retriever import dense, exact, vectors
from rolecast.retriever import encoder as module
from rolecast.retriever.building import write_index
from rolecast.retriever.footprint import OBJECT
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.retriever.structure import Structure, structure_of
from rolecast.types import Passage
from tests.encoders import Fake

WIDTH, COUNT = 16, 700


def unit(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    drawn = np.random.Generator(np.random.PCG64(seed)).standard_normal((count, WIDTH)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


TABLE = unit(COUNT)
PASSAGES = [Passage(f"p{row}", "", f"text {row}") for row in range(COUNT)]


class Table(Fake):
    """The vector of the number that a text ends with."""

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        return TABLE[[int(text.split()[-1]) if text[-1].isdecimal() else 0 for text in texts]]


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Encoder", Table)
    monkeypatch.setattr(vectors, "PART", 128)


def build(path: Path, passages: Any = PASSAGES, **structure: Any) -> Path:
    build_index(passages, path, "dense", "table", structure=Structure(**structure))
    return path


def found(retriever: LocalRetriever, k: int = 5, asked: Sequence[int] = range(0, COUNT, 7)) -> list[list[str]]:
    return [[p.id for p in hits] for hits in asyncio.run(retriever.search([f"query {row}" for row in asked], k))]


def nearest(k: int = 5, asked: Sequence[int] = range(0, COUNT, 7)) -> list[list[str]]:
    return [[f"p{row}" for row in np.argsort(-(TABLE.astype(np.float64) @ TABLE[at]))[:k]] for at in asked]


def recall(some: list[list[str]]) -> float:
    return float(np.mean([len({*a} & {*b}) / len(b) for a, b in zip(some, nearest(), strict=True)]))


FORMS = [
    {},
    {"stored": "float16"},
    {"form": "hnsw", "m": 16},
    {"form": "hnsw", "stored": "float16"},
    {"form": "ivf_flat", "nlist": 8, "nprobe": 8},
    {"form": "ivf_flat", "stored": "float16", "nlist": 8, "nprobe": 8},
    {"form": "ivf_pq", "nlist": 2, "nprobe": 2, "code_bytes": 8},
]


@pytest.mark.parametrize("structure", FORMS, ids=str)
def test_every_structure_is_built_opened_and_searched(tmp_path: Path, structure: dict[str, Any]) -> None:
    index = build(tmp_path / "index", **structure)
    in_memory, on_disk = LocalRetriever.open(index), LocalRetriever.open(index, held="disk")
    assert found(in_memory) == found(on_disk)
    assert recall(found(in_memory)) > (0.5 if structure.get("form") == "ivf_pq" else 0.97)
    assert found(in_memory, 1, [3, 5]) == ([["p3"], ["p5"]])
    written = json.loads((index / "index.json").read_text())
    assert written.get("structure", {}) == {**structure}
    assert not list(tmp_path.glob(".*"))


def test_a_flat_index_is_the_file_that_faiss_writes(tmp_path: Path) -> None:
    """Written part by part, so that it need not fit into memory."""
    for number, (stored, name) in enumerate((("float32", "Flat"), ("float16", "SQfp16"))):
        index = faiss.index_factory(WIDTH, name, faiss.METRIC_INNER_PRODUCT)
        index.add(TABLE.astype(stored).astype(np.float32))
        faiss.write_index(index, str(tmp_path / "whole"))
        made = build(tmp_path / f"index{number}", stored=stored)
        assert (made / "dense.faiss").read_bytes() == (tmp_path / "whole").read_bytes()


def test_float16_takes_half_the_disk_also_while_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for stored in ("float32", "float16"):
        index = build(tmp_path / stored, stored=stored)
        sizes.append((index / "dense.faiss").stat().st_size)
    assert sizes[1] < 0.51 * sizes[0]
    parts = list(vectors.encoded([f"text {row}" for row in range(300)], Table("t"), tmp_path / "parts", lambda *_: None, "float16"))
    assert {part.dtype for part in parts} == {np.dtype(np.float16)}
    assert sum(file.stat().st_size for file in (tmp_path / "parts").iterdir()) < 300 * WIDTH * 2 + 3 * 200


def test_parts_of_other_numbers_are_not_taken(tmp_path: Path) -> None:
    for stored in ("float32", "float16", "float32"):
        made = list(vectors.encoded(["text 1"], Table("t"), tmp_path, lambda *_: None, stored))  # type: ignore[arg-type]
        assert made[0].dtype == np.dtype(stored)


def test_what_a_search_looks_at_lies_in_the_index(tmp_path: Path) -> None:
    of = {}
    for probes in (1, 8):
        of[probes] = recall(found(LocalRetriever.open(build(tmp_path / str(probes), form="ivf_flat", nlist=8, nprobe=probes))))
    assert of[1] < of[8] - 0.1
    graph = faiss.read_index(str(build(tmp_path / "graph", form="hnsw", ef_search=77, ef_construction=55) / "dense.faiss"))
    assert (graph.hnsw.efSearch, graph.hnsw.efConstruction) == (77, 55)


def test_lists_that_end_early_give_what_they_have(tmp_path: Path) -> None:
    """Of a search that misses neighbours, more is not asked for over and over."""
    retriever = LocalRetriever.open(build(tmp_path / "index", form="ivf_flat", nlist=16, nprobe=1))
    assert retriever._dense is not None
    inner, asked = retriever._dense._index, list[int]()

    class Counted:
        d, ntotal = inner.d, inner.ntotal

        def search(self, vectors: Any, k: int) -> Any:
            asked.append(k)
            return inner.search(vectors, k)

    retriever._dense._index = Counted()
    sizes = {len(hits) for hits in found(retriever, 300)}
    assert 0 < max(sizes) < 300
    assert asked == [301]


def test_an_iterator_is_built_from_its_own_lines(tmp_path: Path) -> None:
    def streamed() -> Iterator[Passage]:
        yield from PASSAGES

    list_index, stream_index = build(tmp_path / "list"), build(tmp_path / "stream", streamed())
    for name in ("corpus.jsonl", "dense.faiss", "index.json", "manifest.json"):
        assert (stream_index / name).read_bytes() == (list_index / name).read_bytes()
    with pytest.raises(InputError, match="no passages to write"):
        build(tmp_path / "none", iter(()))


MEASURED = """
import resource, sys
from pathlib import Path
import numpy as np
from rolecast.retriever.building import write_index
from rolecast.retriever.structure import Structure
count, width, part = int(sys.argv[2]), 256, 1024
def parts():
    for at in range(0, count, part):
        yield np.full((min(part, count - at), width), 0.5, dtype=np.float16)
next(parts())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_index(parts, count, Path(sys.argv[1]), Structure(stored="float16"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_flat_index_of_any_size_is_built_in_the_memory_of_a_part(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path / "f"), "200000"], capture_output=True, text=True, check=True)
    assert (tmp_path / "f").stat().st_size > 100_000_000
    assert int(done.stdout) * 1024 < 20_000_000


def test_an_index_on_the_disk_is_mapped_and_its_passages_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    index = build(tmp_path / "index")
    retriever = LocalRetriever.open(index, held="disk")
    assert str(index / "dense.faiss") in Path("/proc/self/maps").read_text()
    assert asyncio.run(retriever.fetch(["p9", "p3"])) == [PASSAGES[9], PASSAGES[3]]
    with pytest.raises(InputError, match="no passage 'p700' in the index"):
        asyncio.run(retriever.fetch(["p9", "p700"]))
    assert list(retriever.passages) == PASSAGES


# What there is no room for


def test_a_build_without_room_is_refused_before_it_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_memory", lambda: 10_000)
    with pytest.raises(
        InputError,
        match=r"building an index of 700 × 16 \(hnsw, float32\) takes 0\.\d MB of memory, and 0\.0 MB are free; take flat, float16 or ivf_pq",
    ):
        build(tmp_path / "index", form="hnsw")
    build(tmp_path / "flat")  # needs none
    monkeypatch.setattr(room, "free_disk", lambda path: 10_000)
    with pytest.raises(
        InputError, match=rf"700 × 16 \(flat, float32\) takes 0\.1 MB of disk at {tmp_path}.*, and 0\.0 MB are free; make room"
    ):
        build(tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_an_index_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "index")
    monkeypatch.setattr(room, "free_memory", lambda: COUNT * (WIDTH * 4 + OBJECT))  # the texts are over
    with pytest.raises(InputError, match=rf"opening {index} takes 0\.3 MB of memory, and 0\.2 MB are free; open it with .*--held disk"):
        LocalRetriever.open(index)
    assert found(LocalRetriever.open(index, held="disk"), 1, [3]) == [["p3"]]
    monkeypatch.setattr(room, "free_memory", lambda: 1000)
    with pytest.raises(InputError, match="take a larger machine"):
        LocalRetriever.open(index, held="disk")


def test_what_a_build_takes_is_no_more_than_it_said(tmp_path: Path) -> None:
    """The file of each structure, beside the parts that are kept meanwhile."""
    for structure in FORMS:
        made, path = Structure(**structure), tmp_path / "x"
        write_index(lambda: iter([TABLE]), COUNT, path, made)
        parts = COUNT * WIDTH * (2 if made.stored == "float16" else 4)
        assert path.stat().st_size + parts < made.bytes_on_disk(COUNT, WIDTH) + 40_000, structure


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"form": "flat", "nprobe": 3}, "flat has no nprobe; leave it out"),
        ({"form": "hnsw", "nlist": 3}, "hnsw has no nlist"),
        ({"form": "ivf_pq", "stored": "float16"}, "ivf_pq stores codes"),
        ({"form": "hnsw", "ef_search": 0}, "--ef-search: Input should be greater"),
        ({"form": "graph"}, "--form: Input should be 'flat'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        structure_of(**given)


@pytest.mark.parametrize(
    ("structure", "said"),
    [
        ({"form": "ivf_pq", "code_bytes": 5}, "code_bytes = 5 does not divide the 16 numbers"),
        ({"form": "ivf_flat", "nlist": 701}, "ivf_flat with 701 lists takes at least 701 vectors, there are 700; take flat"),
    ],
)
def test_structures_that_cannot_be_had_are_refused_before_anything_is_trained(tmp_path: Path, structure: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        build(tmp_path / "index", **structure)
    with pytest.raises(InputError, match="ivf_pq with 5 lists takes at least 256 vectors, there are 200"):
        build(tmp_path / "few", PASSAGES[:200], form="ivf_pq")


def test_the_command_builds_what_it_is_told(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl", PASSAGES)
    command = ["build", "--corpus", str(tmp_path / "corpus.jsonl"), "--encoder", "table"]
    more = ["--structure", "ivf_flat", "--stored", "float16", "--nlist", "4", "--nprobe", "2"]
    done = CliRunner().invoke(data.index_app, [*command, "--out", str(tmp_path / "index"), *more])
    assert f"{tmp_path / 'index'}: dense index of 700 passages" in done.stdout
    written = json.loads((tmp_path / "index" / "index.json").read_text())["structure"]
    assert written == {"form": "ivf_flat", "stored": "float16", "nlist": 4, "nprobe": 2}
    refused = CliRunner().invoke(data.index_app, [*command, "--out", str(tmp_path / "words"), "--kind", "bm25", "--structure", "hnsw"])
    assert "a bm25 index has no vectors to be laid out" in str(refused.exception)


@pytest.mark.parametrize("stored", ["float32", "float16"])
def test_a_flat_index_is_searched_by_torch_as_by_faiss(tmp_path: Path, stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "index", stored=stored)
    by_faiss = LocalRetriever.open(index)
    gpus = exact.on_gpus
    monkeypatch.setattr(exact, "on_gpus", lambda vectors: gpus(vectors, ["cpu", "cpu"]))
    by_torch = LocalRetriever.open(index, searcher="torch")
    assert found(by_torch) == found(by_faiss)
    for searcher, here, kind in (("auto", True, exact.Sharded), ("auto", False, faiss.Index), ("faiss", True, faiss.Index)):
        monkeypatch.setattr(dense, "_gpus", lambda here=here: here)
        opened = LocalRetriever.open(index, searcher=searcher)._dense  # type: ignore[arg-type]
        assert opened is not None
        assert isinstance(opened._index, kind)


def test_torch_searches_no_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build(tmp_path / "index", form="hnsw")
    monkeypatch.setattr(dense, "_gpus", lambda: True)
    assert isinstance(LocalRetriever.open(index, searcher="auto")._dense._index, faiss.IndexHNSW)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="is not flat, and torch searches flat ones"):
        LocalRetriever.open(index, searcher="torch")
