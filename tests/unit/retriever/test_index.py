"""Indexes as artifacts, and the in-process retriever over them. The encoder is a table of two-dimensional directions."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pytest

from rolecast.errors import ArtifactError, InputError
from rolecast.retriever import encoder as module
from rolecast.retriever.encoder import Encoder
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.types import Passage
from tests.encoders import Fake

PASSAGES = [
    Passage("a", "Cats", "red cat"),
    Passage("b", "Dogs", "blue dog dog"),
    Passage("c", "", "red dog"),
    Passage("d", "Owls", "an owl"),
]
ANGLES = {"cat": 10, "blue": 80, "dog": 60, "owl": 120, "fish": 180}  # degrees, by the first of these words in a text


class FakeEncoder(Fake):
    """Texts about one animal point one way; notes on which side each text was encoded."""

    sides: ClassVar[list[tuple[str, str]]] = []

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        FakeEncoder.sides += [(side, text) for text in texts]
        angles = [math.radians(next((angle for word, angle in ANGLES.items() if word in text), 270)) for text in texts]
        return np.array([[math.cos(a), math.sin(a)] for a in angles], dtype=np.float32)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Encoder", FakeEncoder)
    FakeEncoder.sides = []


@pytest.fixture
def bm25(tmp_path: Path) -> Path:
    build_index(PASSAGES, tmp_path / "index", "bm25")
    return tmp_path / "index"


def search(retriever: LocalRetriever, k: int, *queries: str) -> list[list[str]]:
    return [[p.id for p in found] for found in asyncio.run(retriever.search(queries, k))]


def test_results_keep_the_order_of_the_queries(bm25: Path) -> None:
    assert search(LocalRetriever.open(bm25), 3, "owl", "dog", "nothing known", "owl") == [["d"], ["b", "c"], [], ["d"]]
    assert search(LocalRetriever.open(bm25), 3) == []


def test_hits_are_the_passages_with_their_scores(bm25: Path) -> None:
    retriever = LocalRetriever.open(bm25)
    [[best, second]] = asyncio.run(retriever.search(["dog"], 2))
    assert (best.id, best.title, best.text) == ("b", "Dogs", "blue dog dog")
    assert best.score > second.score > 0
    assert PASSAGES[1].score == 0.0


@pytest.mark.parametrize("k", [0, -1])
def test_less_than_one_passage_is_refused(bm25: Path, k: int) -> None:
    with pytest.raises(InputError, match=f"k = {k}"):
        search(LocalRetriever.open(bm25), k, "dog")


WITHOUT = """
import asyncio, sys
from pathlib import Path
for name in sys.argv[2:]:
    sys.modules[name] = None
from rolecast.errors import InputError
from rolecast.retriever.index import LocalRetriever
try:
    retriever = LocalRetriever.open(Path(sys.argv[1]))
    print([p.id for p in asyncio.run(retriever.search(["dog"], 2))[0]])
except InputError as error:
    print(error)
"""


def opened_without(index: Path, *libraries: str) -> str:
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(index), *libraries], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_word_index_needs_no_heavy_library(bm25: Path) -> None:
    assert opened_without(bm25, "faiss", "torch", "sentence_transformers") == "['b', 'c']"


@pytest.mark.usefixtures("fake")
def test_a_library_that_is_missing_is_named_with_its_extra(tmp_path: Path, bm25: Path) -> None:
    for index, library, package in ((build(tmp_path, "dense"), "faiss", "faiss-cpu"), (bm25, "bm25s", "bm25s")):
        said = opened_without(index, library)
        assert said.startswith(f"{package} is not installed; ")
        assert "[retriever]'" in said


@pytest.mark.parametrize("k", [5, 100])
def test_more_than_the_corpus_holds_gives_what_there_is(bm25: Path, k: int) -> None:
    assert search(LocalRetriever.open(bm25), k, "red dog owl") == search(LocalRetriever.open(bm25), 4, "red dog owl")


def test_as_many_as_the_corpus_holds_is_allowed(bm25: Path) -> None:
    assert len(search(LocalRetriever.open(bm25), 4, "red dog owl")[0]) == 4


def test_an_empty_corpus_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the corpus is empty"):
        build_index([], tmp_path / "index", "bm25")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_corpus_without_a_word_to_search_is_refused(tmp_path: Path) -> None:
    for kind, text in (("bm25", "the of"), ("hybrid", "the of"), ("bm25", "?!")):
        with pytest.raises(InputError, match="no passage has a word to search for"):
            build_index([Passage("a", "", text)], tmp_path / "index", kind, "table")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_titles_are_searched_unless_the_text_has_them(tmp_path: Path) -> None:
    passages = [Passage("a", "Whales", "they sing"), Passage("b", "sing", "they sing"), Passage("c", "", "they hum")]
    build_index(passages, tmp_path / "index", "bm25")
    retriever = LocalRetriever.open(tmp_path / "index")
    assert search(retriever, 3, "whales") == [["a"]]
    [[first, second]] = asyncio.run(retriever.search(["sing"], 2))
    assert (first.id, second.id) == ("b", "a")  # one "sing" each: b's title is not counted again, so b is the shorter text


def test_passages_are_fetched_by_id(bm25: Path) -> None:
    retriever = LocalRetriever.open(bm25)
    assert asyncio.run(retriever.fetch(["c", "a", "c"])) == [PASSAGES[2], PASSAGES[0], PASSAGES[2]]
    with pytest.raises(InputError, match="'z'"):
        asyncio.run(retriever.fetch(["a", "z"]))


# Artifacts


def files_of(path: Path) -> list[str]:
    return sorted(json.loads((path / "manifest.json").read_text())["files"])


def test_the_manifest_lists_every_file(bm25: Path) -> None:
    there = sorted(str(file.relative_to(bm25)) for file in bm25.rglob("*") if file.is_file() and file.name != "manifest.json")
    assert files_of(bm25) == there
    assert {"corpus.jsonl", "index.json"} <= set(there)
    assert any(name.startswith("bm25/") for name in there)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [flip, cut, Path.unlink])
def test_a_harmed_file_is_refused_by_name(bm25: Path, harm: Callable[[Path], None]) -> None:
    for name in files_of(bm25):
        kept = (bm25 / name).read_bytes()
        harm(bm25 / name)
        with pytest.raises(ArtifactError, match=name):
            LocalRetriever.open(bm25)
        (bm25 / name).write_bytes(kept)
    LocalRetriever.open(bm25)


def test_an_index_without_its_manifest_is_none(bm25: Path) -> None:
    (bm25 / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match="no committed index"):
        LocalRetriever.open(bm25)


# Dense and hybrid


def build(path: Path, kind: Any) -> Path:
    index = path / str(kind)
    build_index(PASSAGES, index, kind, "table")
    return index


@pytest.mark.usefixtures("fake")
def test_dense_ranks_by_meaning(tmp_path: Path) -> None:
    retriever = LocalRetriever.open(build(tmp_path, "dense"))
    [found] = asyncio.run(retriever.search(["fish"], 4))
    assert [p.id for p in found] == ["d", "b", "c", "a"]
    assert [p.score for p in found] == pytest.approx([0.5, -0.1736482, -0.5, -0.9848078], abs=1e-6)


@pytest.mark.usefixtures("fake")
def test_queries_and_passages_are_encoded_as_what_they_are(tmp_path: Path) -> None:
    retriever = LocalRetriever.open(build(tmp_path, "dense"))
    assert FakeEncoder.sides[:4] == [("passage", text) for text in ("Cats. red cat", "Dogs. blue dog dog", "red dog", "Owls. an owl")]
    search(retriever, 1, "dog")
    assert FakeEncoder.sides[4:] == [("query", "ready"), ("query", "dog")]  # it is loaded before anybody asks
    assert asyncio.run(retriever.embed(["owl"])).shape == (1, 2)


@pytest.mark.usefixtures("fake")
def test_an_index_of_words_embeds_where_faiss_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "rolecast.retriever.dense", raising=False)
    build_index(PASSAGES, tmp_path / "index", "bm25")
    assert asyncio.run(LocalRetriever.open(tmp_path / "index").embed(["owl"])).shape == (1, 2)


@pytest.mark.usefixtures("fake")
def test_an_index_of_words_has_the_encoder_that_it_was_built_with(tmp_path: Path) -> None:
    """Rewards compare meanings also where searches compare words."""
    build_index(PASSAGES, tmp_path / "index", "bm25", "some encoder")
    retriever = LocalRetriever.open(tmp_path / "index")
    assert FakeEncoder.sides == []  # loaded when it is asked
    assert asyncio.run(retriever.embed(["owl", "cat"])) == pytest.approx(
        np.array([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in (120, 10)]), abs=1e-6
    )
    assert retriever._embeddings._encoder.name == "some encoder"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("k", [1, 2, 3, 6, 7])
def test_dense_ties_follow_the_corpus(tmp_path: Path, k: int) -> None:
    words = ["owl", "dog", "cat", "dog", "owl", "dog", "dog"]
    build_index([Passage(str(row), "", word) for row, word in enumerate(words)], tmp_path / "index", "dense", "table")
    retriever = LocalRetriever.open(tmp_path / "index")
    assert search(retriever, k, "dog", "cat") == [["1", "3", "5", "6", "2", "0", "4"][:k], ["2", "1", "3", "5", "6", "0", "4"][:k]]


@pytest.mark.usefixtures("fake")
def test_hybrid_is_the_fusion_of_both_rankings(tmp_path: Path) -> None:
    path = build(tmp_path, "hybrid")
    assert search(LocalRetriever.open(path, "bm25"), 4, "dog cat") == [["a", "b", "c"]]
    assert search(LocalRetriever.open(path, "dense"), 4, "dog cat") == [["a", "c", "b", "d"]]
    [found] = asyncio.run(LocalRetriever.open(path).search(["dog cat"], 4))
    assert [p.id for p in found] == ["a", "b", "c", "d"]
    assert [p.score for p in found] == pytest.approx([2 / 61, 1 / 62 + 1 / 63, 1 / 62 + 1 / 63, 1 / 64])


@pytest.mark.usefixtures("fake")
def test_hybrid_finds_by_meaning_what_shares_no_word(tmp_path: Path) -> None:
    retriever = LocalRetriever.open(build(tmp_path, "hybrid"))
    assert search(retriever, 1, "fish") == [["d"]]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_a_search_without_queries_finds_nothing(tmp_path: Path, kind: str) -> None:
    assert search(LocalRetriever.open(build(tmp_path, kind)), 2) == []


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("built", "opened", "works"),
    [
        ("bm25", "bm25", True),
        ("dense", "dense", True),
        ("hybrid", "bm25", True),
        ("hybrid", "dense", True),
        ("bm25", "dense", False),
        ("bm25", "hybrid", False),
        ("dense", "bm25", False),
        ("dense", "hybrid", False),
    ],
)
def test_an_index_serves_what_it_was_built_for(tmp_path: Path, built: str, opened: Any, works: bool) -> None:
    path = build(tmp_path, built)
    if works:
        assert LocalRetriever.open(path, opened).kind == opened
    else:
        with pytest.raises(InputError, match=f"{built} index.*--kind {opened}"):
            LocalRetriever.open(path, opened)


@pytest.mark.usefixtures("fake")
def test_an_index_opens_as_what_it_was_built(tmp_path: Path) -> None:
    assert [LocalRetriever.open(build(tmp_path, kind)).kind for kind in ("bm25", "dense", "hybrid")] == ["bm25", "dense", "hybrid"]


def test_an_encoder_that_is_nowhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # an import of it, which takes seconds, would fail
    with pytest.raises(InputError, match="nowhere"):
        Encoder("/nowhere").encode(["x"], "query")


def test_an_encoder_whose_library_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"^sentence-transformers is not installed; .*\[retriever\]"):
        Encoder("minilm").encode(["x"], "query")
