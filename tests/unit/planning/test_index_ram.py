"""What a corpus takes: counted, drawn, or said."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig
from rolecast.data.records import read_corpus
from rolecast.errors import InputError
from rolecast.planning.index import Corpus, corpus_of, index_parts

SPLITS = ("train", "dev", "test")
TEXT = " ".join(f"word{number}" for number in range(40))


def config_of(**retriever: Any) -> RunConfig:
    return RunConfig.model_validate({"method": {"name": "decor"}, "retriever": retriever})


def with_files(folder: Path, corpus: str = "corpus.jsonl") -> RunConfig:
    files = {name: str(folder / f"{name}.jsonl") for name in ("train", "dev", "test")}
    return RunConfig.model_validate({"method": {"name": "decor"}, "data": {"world": None, "corpus": str(folder / corpus), **files}})


def write(folder: Path, count: int) -> list[str]:
    return [json.dumps({"id": f"p{number}", "title": f"Title {number}", "text": f"{number} {TEXT}"}) for number in range(count)]


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_a_corpus_is_counted(tmp_path: Path, name: str) -> None:
    text = ("\n".join(write(tmp_path, 3)) + "\n\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    found = corpus_of(with_files(tmp_path, name))
    assert found is not None
    assert (found.passages, found.letters) == (3, len(f"0 {TEXT}"))


def test_one_that_is_elsewhere_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="by --passages N"):
        corpus_of(with_files(tmp_path))
    assert corpus_of(with_files(tmp_path), 21_000_000) == Corpus(21_000_000, 600.0, "--passages")


def test_a_world_is_drawn() -> None:
    found = corpus_of(
        RunConfig.model_validate({"data": {"world": {"entities": dict.fromkeys(SPLITS, 30), "questions": dict.fromkeys(SPLITS, 4)}}})
    )
    assert found is not None
    assert found.passages == 90 * 3


def test_wikipedia_by_hand() -> None:
    """21 million passages in vectors of 384 float32 are 30.0 GiB."""
    parts = {part.name: part.bytes for part in index_parts(config_of(kind="dense"), Corpus(21_000_000, 600.0, ""))}
    assert parts["index: vectors"] == 21_000_000 * 384 * 4 == 32_256_000_000
    assert parts["index: passages"] == 21_000_000 * 860
    assert "index: words" not in parts
    assert set(dict.fromkeys(part.name for part in index_parts(config_of(kind="hybrid"), Corpus(1, 600.0, "")))) == {
        "index: passages", "index: words", "index: vectors", "index: encoder",
    }  # fmt: skip


def test_a_service_has_it_elsewhere() -> None:
    corpus = Corpus(1000, 600.0, "")
    assert index_parts(config_of(url="http://retriever:8080"), corpus) == []
    assert index_parts(config_of(kind="external", url="http://retriever:8080"), corpus) == []
    assert index_parts(config_of(), None) == []


def test_passages_take_what_is_said(tmp_path: Path) -> None:
    """Within a quarter, of what Python allocates for them and for the table by which they are found."""
    (tmp_path / "corpus.jsonl").write_text("\n".join(write(tmp_path, 4000)))
    found = corpus_of(with_files(tmp_path))
    [said] = [part.bytes for part in index_parts(config_of(), found) if part.name == "index: passages"]
    tracemalloc.start()
    passages = read_corpus(tmp_path / "corpus.jsonl")
    by_id = {passage.id: passage for passage in passages}
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(by_id) == 4000
    assert said == pytest.approx(held, rel=0.25)
