"""Indexes in the layouts of Search-R1 and Pyserini, made here, and what is refused of them."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from rolecast.cli import data
from rolecast.errors import ArtifactError, InputError
from rolecast.retriever import encoder as module
from rolecast.retriever.encoder import Prefixes
from rolecast.retriever.importing import import_index
from rolecast.retriever.index import LocalRetriever
from rolecast.types import Passage
from tests.encoders import Fake

WIDTH, COUNT = 24, 60
PASSAGES = [Passage(str(row), f"Title {row}", f"what is said of number {row}") for row in range(COUNT)]


class Hashed(Fake):
    """A direction drawn by the letters of a text and its prefix."""

    width = WIDTH

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        prefix = getattr(self.prefixes, side)
        drawn = [np.random.default_rng(zlib.crc32((prefix + text).encode())).standard_normal(self.width) for text in texts]
        found = np.array(drawn, dtype=np.float32).reshape(len(texts), self.width)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


E5 = Prefixes(query="query: ", passage="passage: ")


def vectors(texts: list[str]) -> npt.NDArray[np.float32]:
    return Hashed("e5", E5).encode(texts, "passage")


def search_r1(folder: Path, name: str = "Flat", metric: int = faiss.METRIC_INNER_PRODUCT, count: int = COUNT) -> tuple[Path, Path]:
    """e5_Flat.index and wiki-18.jsonl."""
    rows = [{"id": p.id, "contents": f'"{p.title}"\n{p.text}'} for p in PASSAGES]
    folder.mkdir(exist_ok=True)
    (folder / "wiki-18.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = faiss.index_factory(WIDTH, name, metric)
    made = vectors([row["contents"] for row in rows])
    index.train(made)
    index.add(made[:count])
    faiss.write_index(index, str(folder / "e5_Flat.index"))
    return folder / "e5_Flat.index", folder / "wiki-18.jsonl"


def pyserini(folder: Path) -> tuple[Path, Path]:
    """A folder with index and docid, in another order than the corpus beside it."""
    order = PASSAGES[::-1]
    (folder / "dense").mkdir(parents=True)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(vectors([f"{p.title}\n{p.text}" for p in order]))
    faiss.write_index(index, str(folder / "dense" / "index"))
    (folder / "dense" / "docid").write_text("".join(f"{p.id}\n" for p in order))
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    return folder / "dense", folder / "corpus.jsonl"


def taken(layout: Any, source: Path, corpus: Path, out: Path, encoder: Fake | None = None) -> Any:
    return import_index(layout, source, corpus, out, "e5", encoder or Hashed("e5", E5))  # type: ignore[arg-type]


def asked(out: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> list[Passage]:
    """As whoever asks with the very text that a passage was encoded as."""
    monkeypatch.setattr(module, "Encoder", type("Asking", (Hashed,), {"encode": lambda self, texts, side: vectors(list(texts))}))
    return asyncio.run(LocalRetriever.open(out).search([text], 3))[0]


@pytest.mark.parametrize("name", ["Flat", "SQfp16", "HNSW16", "IVF4,Flat"])
def test_search_r1s_layout_is_taken_in(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, corpus = search_r1(tmp_path / "theirs", name)
    done = taken("search_r1", source, corpus, tmp_path / "ours") if name != "IVF4,Flat" else None
    if done is None:  # one list of four is looked into
        done = import_index("search_r1", source, corpus, tmp_path / "ours", "e5", None)
    assert (done.passages, done.width, done.checked) == (COUNT, WIDTH, 0 if name == "IVF4,Flat" else 32)
    [first, *_] = asked(tmp_path / "ours", '"Title 7"\nwhat is said of number 7', monkeypatch)
    assert first.id == "7"
    assert first.score == pytest.approx(1.0, abs=1e-2)


def test_its_parts_are_put_together(tmp_path: Path) -> None:
    source, corpus = search_r1(tmp_path / "theirs")
    data, parts = source.read_bytes(), tmp_path / "parts"
    parts.mkdir()
    (parts / "part_ab").write_bytes(data[1000:])
    (parts / "part_aa").write_bytes(data[:1000])
    taken("search_r1", parts, corpus, tmp_path / "ours")
    assert (tmp_path / "ours" / "dense.faiss").read_bytes() == data


def test_pyserinis_layout_is_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, corpus = pyserini(tmp_path)
    assert taken("pyserini", source, corpus, tmp_path / "ours").checked == 32
    assert asked(tmp_path / "ours", "Title 7\nwhat is said of number 7", monkeypatch)[0].id == "7"


def test_an_encoder_that_is_not_here_is_not_asked(tmp_path: Path) -> None:
    source, corpus = search_r1(tmp_path / "theirs")
    assert import_index("search_r1", source, corpus, tmp_path / "ours", "/elsewhere/e5", None).checked == 0
    assert "identity" not in json.loads((tmp_path / "ours" / "index.json").read_text())


def refused(said: str, *given: Any, out: Path) -> None:
    with pytest.raises((InputError, ArtifactError), match=said):
        taken(*given[:3], out, *given[3:])
    assert not out.exists()


def test_an_index_of_another_corpus_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "ours"
    source, corpus = search_r1(tmp_path / "short", count=50)
    refused(r"holds 50 vectors and .* has 60 passages; name the corpus", "search_r1", source, corpus, out=out)
    source, corpus = search_r1(tmp_path / "moved")
    lines = corpus.read_text().splitlines(keepends=True)
    corpus.write_text("".join([*lines[1:], lines[0]]))
    refused(r"passage '1', encoded again, is cosine .* \(32 of 32 passages differ\)", "search_r1", source, corpus, out=out)
    corpus.write_text("".join([*lines[:30], lines[3], *lines[31:]]))
    refused(r"60 vectors and .* has 59 passages \(1 of its 60 rows are empty or there twice\)", "search_r1", source, corpus, out=out)
    source, corpus = search_r1(tmp_path / "graph", "HNSW16")
    corpus.write_text("".join([*lines[1:], lines[0]]))
    refused(r"is not among the first 10 for itself", "search_r1", source, corpus, out=out)


def test_an_index_of_another_encoder_is_refused(tmp_path: Path) -> None:
    source, corpus = search_r1(tmp_path / "theirs")
    out, wide = tmp_path / "ours", type("Wide", (Hashed,), {"width": 32})("wide", E5)
    refused("name the corpus, the encoder and the prefixes", "search_r1", source, corpus, Hashed("e5"), out=out)
    refused(r"the encoder wide gives vectors of 32 numbers, .* holds 24", "search_r1", source, corpus, wide, out=out)


def test_what_is_no_such_layout_is_refused(tmp_path: Path) -> None:
    source, corpus = search_r1(tmp_path / "theirs", metric=faiss.METRIC_L2)
    out = tmp_path / "ours"
    refused("measures distances, not inner products", "search_r1", source, corpus, out=out)
    refused("is no FAISS index", "search_r1", corpus, corpus, out=out)
    refused("is no index of Search-R1's", "search_r1", tmp_path, corpus, out=out)
    refused("has no file 'index'", "pyserini", tmp_path, corpus, out=out)
    folder, corpus = pyserini(tmp_path / "p")
    (folder / "docid").write_text("0\nnowhere\n")
    refused("has no passage 'nowhere', which .*docid names", "pyserini", folder, corpus, out=out)
    (folder / "docid").write_text("0\n1\n")
    refused(r"holds 60 vectors and .*docid has 2 ids", "pyserini", folder, corpus, out=out)


def test_the_command_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Encoder", Hashed)
    source, corpus = search_r1(tmp_path / "theirs")
    (tmp_path / "e5").mkdir()
    command = ["import", str(source), "--layout", "search_r1", "--corpus", str(corpus), "--encoder", str(tmp_path / "e5")]
    prefixes = ["--query-prefix", "query: ", "--passage-prefix", "passage: "]
    done = CliRunner().invoke(data.index_app, [*command, *prefixes, "--out", str(tmp_path / "ours")])
    assert f"{tmp_path / 'ours'}: 60 passages × 24, 32 of them encoded again" in done.stdout, done
    command[-1] = "/elsewhere/e5"
    done = CliRunner().invoke(data.index_app, [*command, *prefixes, "--out", str(tmp_path / "unchecked")])
    assert "60 passages × 24, none encoded again: the encoder /elsewhere/e5 is not here" in done.stdout
    assert json.loads((tmp_path / "unchecked" / "index.json").read_text())["prefixes"] == E5.model_dump()
