"""`Retriever` in this process, over HTTP, and as a front over shards: what one answers, the others answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from rolecast.errors import InputError
from rolecast.judge.client import HttpJudge
from rolecast.ports import IndexInfo, Retriever
from rolecast.retriever import encoder
from rolecast.retriever.app import make_retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.front import make_front
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.retriever.settings import FrontSettings, RetrieverSettings
from rolecast.retriever.shard import split
from rolecast.service.client import WrongPart
from rolecast.service.state import Service
from rolecast.store.artifact import MANIFEST, digest_of
from rolecast.types import Passage
from tests.encoders import Fake
from tests.live import serving

TITLES = [
    "Cats", "", 'The "X" Files', '"', '""', "two\nlines", "\n", "a\\nb", "back\\slash", '\\"', "tab\there", "Ünïcödé 漢字 🦉", " spaced ", "\r", "a\r\nb",
]  # fmt: skip
PASSAGES = [
    *(Passage(f"t{n}", title, f"titled number{n}\nsecond line, \"quoted\" and \\ back") for n, title in enumerate(TITLES)),
    Passage("b", "Dogs", "blue dog dog"),
    Passage("c", "", "red dog"),
    Passage("d", "Owls", "an owl"),
    Passage("e", "Owls", "an owl"),
    Passage("ö/漢?#", "Vögel", "Eine Eule ist ein Vogel, 猫 nicht"),
]  # fmt: skip
ANGLES = {"cat": 10, "blue": 80, "dog": 60, "owl": 120}


class TableEncoder(Fake):
    """Texts about one animal point one way."""

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        angles = [math.radians(next((angle for word, angle in ANGLES.items() if word in text), 200)) for text in texts]
        return np.array([[math.cos(a), math.sin(a)] for a in angles], dtype=np.float32)


@pytest.fixture(scope="module", params=["bm25", "dense", "hybrid"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "Encoder", TableEncoder)
        path = tmp_path_factory.mktemp("index") / request.param
        build_index(PASSAGES, path, request.param)
        yield path


@contextmanager
def front_over(index: Path, shards: int) -> Iterator[HttpRetriever]:
    """Cut into so many, each behind a service of its own; they are named in another order than they have."""
    parts = index.parent / f"{index.name}-{shards}"
    split(index, shards, lambda number: nullcontext(parts / str(number)))
    with ExitStack() as stack:
        urls = [stack.enter_context(serving(*make_retriever(RetrieverSettings(index=str(parts / str(n)), topk=1)))) for n in range(shards)]
        url = stack.enter_context(serving(*make_front(FrontSettings(shards=",".join(reversed(urls))))))
        yield HttpRetriever(url)


@pytest.fixture(scope="module", params=["local", "http", "front"])
def retriever(request: pytest.FixtureRequest, index: Path) -> Iterator[Retriever]:
    if request.param == "local":
        yield LocalRetriever.open(index)
    elif request.param == "front":
        with front_over(index, 3) as front:
            yield front
    else:
        with serving(*make_retriever(RetrieverSettings(index=str(index)))) as url:
            yield HttpRetriever(url)


@pytest.fixture(scope="module")
def local(index: Path) -> LocalRetriever:
    return LocalRetriever.open(index)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.mark.parametrize("k", [1, 2, 5, len(PASSAGES)])
def test_hits_scores_and_order_are_those_of_the_index(retriever: Retriever, local: LocalRetriever, k: int) -> None:
    queries = ["dog", "owl", "titled", "nothing known", "猫 nicht", "dog", 'quoted "number3"', "red dog owl"]
    found = run(retriever.search(queries, k))
    assert found == run(local.search(queries, k))  # ids, titles, texts and scores, all equal
    assert len(found) == len(queries)
    for hits in found:
        assert len(hits) <= k
        assert [p.score for p in hits] == sorted((p.score for p in hits), reverse=True)


def test_every_title_and_text_survives(retriever: Retriever) -> None:
    found = run(retriever.search([f"number{n}" for n in range(len(TITLES))], len(PASSAGES)))
    assert [next(p for p in hits if p.id == f"t{n}").title for n, hits in enumerate(found)] == TITLES
    assert run(retriever.fetch([p.id for p in PASSAGES])) == PASSAGES


def test_no_query_no_result(retriever: Retriever) -> None:
    assert run(retriever.search([], 3)) == []
    assert run(retriever.fetch([])) == []


@pytest.mark.parametrize("query", ["", "the of", "?!", "\x00", "a" * 10_000])
def test_odd_queries_are_answered(retriever: Retriever, local: LocalRetriever, query: str) -> None:
    assert run(retriever.search([query, "dog"], 2)) == run(local.search([query, "dog"], 2))


def test_fewer_hits_than_asked_for(retriever: Retriever, local: LocalRetriever) -> None:
    [hits] = run(retriever.search(["dog"], len(PASSAGES)))
    if local.kind == "bm25":
        assert [p.id for p in hits] == ["b", "c"]
    else:
        assert len(hits) == len(PASSAGES)


def test_more_queries_than_one_request_takes(retriever: Retriever, local: LocalRetriever) -> None:
    queries = [f"number{n % len(TITLES)}" for n in range(1500)]
    assert run(retriever.search(queries, 1)) == run(local.search(queries, 1))


@pytest.mark.parametrize("k", [len(PASSAGES) + 1, 1000])
def test_a_k_beyond_the_corpus_gives_what_there_is(retriever: Retriever, local: LocalRetriever, k: int) -> None:
    found = run(retriever.search(["dog", "owl"], k))
    assert found == run(local.search(["dog", "owl"], len(PASSAGES)))
    assert all(0 < len(hits) <= len(PASSAGES) for hits in found)


@pytest.mark.parametrize("k", [0, -1])
def test_an_impossible_k_is_refused(retriever: Retriever, k: int) -> None:
    with pytest.raises(InputError, match=f"k = {k}"):
        run(retriever.search(["dog"], k))


def test_an_unknown_id_is_refused_by_name(retriever: Retriever) -> None:
    with pytest.raises(InputError, match="no passage 'z' in the index"):
        run(retriever.fetch(["b", "z"]))


def test_embeddings_are_the_encoders(retriever: Retriever, local: LocalRetriever) -> None:
    def embed(texts: list[str]) -> npt.NDArray[np.float32]:
        vectors: npt.NDArray[np.float32] = run(retriever.embed(texts))
        return vectors

    texts = ["owl", "dog", "cat", *(f"{n}" for n in range(300))]
    assert embed(texts).dtype == np.float32
    np.testing.assert_array_equal(embed(texts), run(local.embed(texts)))


def test_many_callers_at_once_get_their_own(retriever: Retriever, local: LocalRetriever) -> None:
    words: Sequence[str] = ["dog", "owl", "titled", "number3", "nothing", "red dog"]
    asked = [([words[(n + j) % len(words)] for j in range(n % 4)], 1 + n % 5) for n in range(200)]

    async def all_of(search: Callable[..., Coroutine[Any, Any, list[list[Passage]]]]) -> list[list[list[Passage]]]:
        return await asyncio.gather(*(search(queries, k) for queries, k in asked))

    assert run(all_of(retriever.search)) == run(all_of(local.search))


def test_both_say_what_they_serve(retriever: Retriever, index: Path) -> None:
    assert asyncio.run(retriever.info()) == IndexInfo(index.name, digest_of((index / MANIFEST).read_bytes()))


def test_another_corpus_is_another_index(tmp_path: Path) -> None:
    infos = []
    for name, passages in (("a", PASSAGES[-3:]), ("b", PASSAGES[-3:]), ("c", PASSAGES[-2:])):
        build_index(passages, tmp_path / name, "bm25")
        infos.append(str(asyncio.run(LocalRetriever.open(tmp_path / name).info())))
    assert infos[0] == infos[1] != infos[2]


def test_a_client_of_another_part_reads_what_there_is(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "index", "bm25")
    refused = pytest.raises(WrongPart, match=r"404 there is no POST /v1/judge; this service has .*, POST /retrieve, ")
    with serving(*make_retriever(RetrieverSettings(index=str(tmp_path / "index")))) as url, refused:
        asyncio.run(HttpJudge(url).judge("answer", {}))


@pytest.mark.parametrize("answer", [(404, {"detail": "Not Found"}), (405, {}), (200, {"something": "else"}), (200, ["x"])])
def test_another_server_of_the_wire_is_external(answer: tuple[int, Any]) -> None:
    app = FastAPI()

    @app.get("/v1/index")
    async def about() -> JSONResponse:
        return JSONResponse(answer[1], answer[0])

    service = Service("other")
    service.status = "ready"
    with serving(app, service) as url:
        assert asyncio.run(HttpRetriever(url).info()) == IndexInfo("external")
