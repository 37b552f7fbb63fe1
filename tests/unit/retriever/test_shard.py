"""An index in shards: what they find together is what the whole finds, and what cannot be cut is refused."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from rolecast.errors import InputError
from rolecast.retriever import encoder as module
from rolecast.retriever.analysis import Analysis
from rolecast.retriever.front import merged
from rolecast.retriever.hybrid import depth, fused
from rolecast.retriever.index import Kind, LocalRetriever, build_index
from rolecast.retriever.shard import split
from rolecast.retriever.structure import Structure
from rolecast.types import Passage
from tests.encoders import Fake

WORDS = ["red", "blue", "dog", "cat", "owl", "sings", "runs"]
PASSAGES = [
    Passage(f"p{n}", first if n % 3 else "", f"{first} {second} {second} number{n}") for n, (first, second) in enumerate(itertools.product(WORDS, WORDS))
]  # fmt: skip


class Angles(Fake):
    """By the first word that is known, eight of them: many texts point one way. Ten words fit its window."""

    window = 10

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        places = [next((WORDS.index(word) for word in text.replace(".", "").split() if word in WORDS), 7) for text in texts]
        return np.array([[math.cos(place), math.sin(place)] for place in places], dtype=np.float32)


@pytest.fixture(autouse=True)
def angles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Encoder", Angles)


def cut(index: Path, shards: int) -> list[LocalRetriever]:
    split(index, shards, lambda number: nullcontext(index.parent / f"{index.name}-{shards}" / str(number)))
    return [LocalRetriever.open(index.parent / f"{index.name}-{shards}" / str(number)) for number in range(shards)]


def together(shards: Sequence[LocalRetriever], query: str, k: int) -> list[tuple[str, float]]:
    firsts = [shard.shard.first for shard in shards if shard.shard]
    deep = depth(shards[0].rankers, k)
    hits = fused(merged([shard.rankings([query], deep)[0] for shard in shards], firsts, deep), k)
    ids = [passage.id for shard in shards for passage in shard.passages]
    return [(ids[row], score) for row, score in hits]


@pytest.mark.parametrize("kind", ["bm25", "dense", "hybrid"])
@pytest.mark.parametrize(
    "options", [{}, {"structure": Structure(stored="float16")}, {"long": "split"}, {"analysis": Analysis(stemmer="english")}]
)
def test_shards_find_together_what_the_whole_finds(tmp_path: Path, kind: Kind, options: dict[str, Any]) -> None:
    texts = [*PASSAGES[:9], Passage("long", "", "owl " * 8 + "dog " * 9), *PASSAGES[9:]] if "long" in options else PASSAGES
    if kind == "bm25":
        options = {name: value for name, value in options.items() if name == "analysis"}
    build_index(texts, tmp_path / "index", kind, "table", **options)
    whole = LocalRetriever.open(tmp_path / "index")
    for shards in (2, 5):
        parts = cut(tmp_path / "index", shards)
        assert [p.id for part in parts for p in part.passages] == [p.id for p in whole.passages]
        for query, k in itertools.product(["dog", "red owl sings", "number7 cat", "nothing known"], [1, 4, 20]):
            [expected] = asyncio.run(whole.search([query], k))
            assert together(parts, query, k) == [(p.id, p.score) for p in expected]


def test_a_shard_knows_what_it_is_a_part_of(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "index", "bm25")
    digest = asyncio.run(LocalRetriever.open(tmp_path / "index").info()).digest
    told = [part.shard.model_dump() for part in cut(tmp_path / "index", 2) if part.shard]
    assert told == [{"number": n, "of": 2, "first": first, "passages": 49, "whole": digest} for n, first in ((0, 0), (1, 24))]


def test_words_keep_the_weights_of_the_whole(tmp_path: Path) -> None:
    """In a shard alone `red` stands in every second passage, in the whole in one of three: an index of the shard's own would say so."""
    build_index(PASSAGES, tmp_path / "index", "bm25")
    build_index(PASSAGES[:24], tmp_path / "alone", "bm25")
    part, alone = cut(tmp_path / "index", 2)[0], LocalRetriever.open(tmp_path / "alone")
    [[own]], [[other]] = (asyncio.run(one.search(["red"], 1)) for one in (part, alone))
    assert own.id == other.id
    assert own.score != pytest.approx(other.score)


def test_what_cannot_be_cut_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    build_index(PASSAGES[:3], tmp_path / "small", "bm25")
    with pytest.raises(InputError, match="has 3 passages; cut it into at most as many"):
        cut(tmp_path / "small", 4)
    build_index(PASSAGES, tmp_path / "graph", "dense", "table", structure=Structure(form="hnsw"))
    with pytest.raises(InputError, match="is not flat, and its graph or lists cannot be cut"):
        cut(tmp_path / "graph", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "small"]
    cut(tmp_path / "small", 2)
    with pytest.raises(InputError, match="is a shard itself"):
        split(tmp_path / "small-2" / "0", 1, lambda number: nullcontext(tmp_path / "again"))
