"""The retriever's wires, as clients of other servers speak them, and how it starts."""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.data.records import split_contents
from rolecast.errors import ArtifactError, InputError
from rolecast.retriever import encoder
from rolecast.retriever.app import make_retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.store.uri import open_store
from rolecast.types import Passage
from rolecast.wire.retriever import contents, title_and_text
from tests.encoders import Fake
from tests.live import serving
from tests.weed import S3Server

PASSAGES = [
    Passage("a", "Cats", "red cat"),
    Passage("b", "Dogs", "blue dog dog"),
    Passage("c", "", "red dog"),
    Passage("d", "Owls", "a dog, an owl"),
]


class Constant(Fake):
    def encode(self, texts: list[str], side: str) -> Any:
        return np.array([[len(text), 0.1] for text in texts], dtype=np.float32)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "index"
    build_index(PASSAGES, path, "bm25")
    return path


@pytest.fixture(scope="module")
def url(index: Path) -> Iterator[str]:
    with serving(*make_retriever(RetrieverSettings(index=str(index), topk=2))) as url:
        yield url


def post(url: str, path: str, body: object) -> Any:
    reply = httpx.post(url + path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


DOG = [
    {"id": "b", "contents": '"Dogs"\nblue dog dog'},
    {"id": "c", "contents": '""\nred dog'},
    {"id": "d", "contents": '"Owls"\na dog, an owl'},
]


def test_retrieve_without_scores(url: str) -> None:
    assert post(url, "/retrieve", {"queries": ["dog", "nothing", "cat"], "topk": 3}) == {
        "result": [DOG, [], [{"id": "a", "contents": '"Cats"\nred cat'}]]
    }


def test_retrieve_with_scores(url: str) -> None:
    [found] = post(url, "/retrieve", {"queries": ["dog"], "topk": 3, "return_scores": True})["result"]
    assert [hit["document"] for hit in found] == DOG
    assert all(set(hit) == {"document", "score"} for hit in found)
    assert [hit["score"] for hit in found] == sorted((hit["score"] for hit in found), reverse=True)


@pytest.mark.parametrize(
    ("topk", "hits"),
    [({}, 2), ({"topk": None}, 2), ({"topk": 0}, 2), ({"topk": 1}, 1), ({"topk": 4}, 3), ({"topk": 3.0}, 3), ({"topk": 99}, 3)],
)
def test_topk_null_or_0_is_the_servers_default(url: str, topk: dict[str, Any], hits: int) -> None:
    assert len(post(url, "/retrieve", {"queries": ["dog"], **topk})["result"][0]) == hits


def test_an_empty_list_has_an_empty_result(url: str) -> None:
    assert post(url, "/retrieve", {"queries": []}) == {"result": []}
    assert post(url, "/search", {"questions": [], "N": 2}) == []
    assert post(url, "/fetch", {"ids": []}) == {"result": []}


def test_search_is_the_wire_of_mask(url: str) -> None:
    assert post(url, "/search", {"questions": ["dog", "nothing"], "N": 1}) == [{"top_k_docs": ['"Dogs"\nblue dog dog']}, {"top_k_docs": []}]


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize("topk", [None, 0, 1, 2, 3])
def test_the_shapes_that_search_r1_sends(url: str, topk: int | None, scores: bool) -> None:
    queries = ["dog", "", "nothing", "d" * 10_000, "Où est le café ? 旅游景点 🦉", "dog"]
    found = post(url, "/retrieve", {"queries": queries, "topk": topk, "return_scores": scores})["result"]
    documents = [[hit["document"] for hit in hits] if scores else hits for hits in found]
    assert documents == [DOG[: topk or 2], [], [], [], [], DOG[: topk or 2]]


@pytest.mark.parametrize("n", [None, 0, 1, 2, 3, 3.0])
@pytest.mark.parametrize(("question", "hits"), [("dog", 3), ("", 0), ("d" * 10_000, 0), ("旅游景点", 0)])
def test_the_shapes_that_mask_sends(url: str, n: int | None, question: str, hits: int) -> None:
    [found] = post(url, "/search", {"questions": [question], "N": n})
    assert found == {"top_k_docs": [document["contents"] for document in DOG][: min(hits, int(n or 2))]}


def test_a_whole_steps_queries_are_one_request_and_hold_nobody_up(url: str) -> None:
    queries = ["dog", "cat", "owl"] * 854  # 2,562
    with ThreadPoolExecutor() as pool:
        step = pool.submit(post, url, "/retrieve", {"queries": queries, "topk": 3})
        while not step.done():
            assert post(url, "/retrieve", {"queries": ["dog"], "topk": 1}) == {"result": [DOG[:1]]}
        found = step.result()["result"]
    assert len(found) == len(queries)
    assert found[-3:] == found[:3] == [DOG, [{"id": "a", "contents": '"Cats"\nred cat'}], [DOG[2]]]


def test_fetch(url: str) -> None:
    assert post(url, "/fetch", {"ids": ["c", "b"]}) == {"result": [DOG[1], DOG[0]]}


def test_embeddings_have_openais_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "Encoder", Constant)
    build_index(PASSAGES, tmp_path / "index", "dense")
    with serving(*make_retriever(RetrieverSettings(index=str(tmp_path / "index")))) as url:
        reply = post(url, "/v1/embeddings", {"input": ["ab", "c"], "model": "m", "user": "someone"})
        assert (reply["object"], reply["model"]) == ("list", "m")
        assert [(item["object"], item["index"]) for item in reply["data"]] == [("embedding", 0), ("embedding", 1)]
        assert reply["data"][0]["embedding"] == pytest.approx([2.0, 0.1])
        one = post(url, "/v1/embeddings", {"input": "abc", "model": "m", "encoding_format": "base64"})["data"]
        assert struct.unpack("<2f", base64.b64decode(one[0]["embedding"])) == pytest.approx([3.0, 0.1])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/retrieve", {}),
        ("/retrieve", {"queries": "dog"}),
        ("/retrieve", {"queries": [1]}),
        ("/retrieve", {"queries": ["dog"], "topk": -1}),
        ("/retrieve", {"queries": ["dog"], "topk": "3"}),
        ("/retrieve", {"queries": ["dog"], "topk": 3.5}),
        ("/retrieve", {"queries": ["dog"], "topk": True}),
        ("/retrieve", {"queries": ["dog"] * 8193}),
        ("/fetch", {"ids": ["a"] * 1025}),
        ("/search", {"queries": ["dog"]}),
        ("/fetch", {"ids": ["nowhere"]}),
        ("/v1/embeddings", {"input": ["dog"], "encoding_format": "hex"}),
        ("/v1/embeddings", {"input": [[1, 2]]}),
    ],
)
def test_what_cannot_be_answered_is_refused(url: str, path: str, body: object) -> None:
    reply = httpx.post(url + path, json=body)
    assert reply.status_code == 400
    assert reply.json().keys() == ({"error"} if path.startswith("/v1/") else {"detail"})


def test_a_request_is_bounded_in_characters_and_passages(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    search = LocalRetriever.search

    async def noted(self: LocalRetriever, queries: Sequence[str], k: int) -> list[list[Passage]]:
        asked.extend(queries)
        return await search(self, queries, k)

    monkeypatch.setattr(LocalRetriever, "search", noted)
    settings = RetrieverSettings(index=str(index), topk=2, max_text_characters=10, max_results=6)
    with serving(*make_retriever(settings)) as url:
        asked.clear()
        for path, body, said in (
            ("/retrieve", {"queries": ["dog", "x" * 11]}, "a text has 11 characters; send at most 10 in each"),
            ("/search", {"questions": ["x" * 11]}, "a text has 11 characters"),
            ("/retrieve", {"queries": ["dog"] * 4}, "4 queries × k = 2 are more than 6 passages at once"),
            ("/search", {"questions": ["dog"] * 3, "N": 3}, "3 queries × k = 3 are more than 6"),
        ):
            reply = httpx.post(url + path, json=body)
            assert (reply.status_code, said in reply.json()["detail"]) == (400, True)
        embedded = httpx.post(f"{url}/v1/embeddings", json={"input": "x" * 11})
        assert (embedded.status_code, "11 characters" in embedded.json()["error"]["message"]) == (400, True)
        assert asked == []
        assert len(post(url, "/retrieve", {"queries": ["dog"] * 3})["result"]) == 3
        assert len(post(url, "/retrieve", {"queries": ["x" * 10]})["result"]) == 1


def test_half_a_surrogate_pair_is_refused(url: str) -> None:
    for path, key in (("/retrieve", "queries"), ("/fetch", "ids"), ("/v1/embeddings", "input")):
        reply = httpx.post(url + path, content=f'{{"{key}": ["\\ud800"]}}', headers={"content-type": "application/json"})
        assert reply.status_code == 400, reply.text


def test_metrics_count_queries_and_batches(index: Path) -> None:
    with serving(*make_retriever(RetrieverSettings(index=str(index)))) as url:
        post(url, "/retrieve", {"queries": ["dog", "cat"]})
        post(url, "/search", {"questions": ["dog"]})
        text = httpx.get(f"{url}/metrics").text
    assert "rolecast_retriever_queries_total 3.0" in text
    assert "rolecast_retriever_batch_queries_sum 3.0" in text


def test_an_index_is_served_from_s3(index: Path, weed: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**weed.environ, "ROLECAST_WORKDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    open_store("s3://ready/retriever").publish(index, "index")
    with serving(*make_retriever(RetrieverSettings(index="s3://ready/retriever/index"))) as url:
        assert post(url, "/fetch", {"ids": ["a"]}) == {"result": [{"id": "a", "contents": '"Cats"\nred cat'}]}
    open_store("s3://ready/retriever").put("index/corpus.jsonl", b"damaged")
    with serving(*make_retriever(RetrieverSettings(index="s3://ready/retriever/index"))):
        pass  # the sound copy of before is used
    [copy] = tmp_path.iterdir()
    (copy / "corpus.jsonl").unlink()
    with (
        pytest.raises(ArtifactError, match=r"corpus\.jsonl does not match"),
        serving(*make_retriever(RetrieverSettings(index="s3://ready/retriever/index"))),
    ):
        pass


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"index": "/nowhere"}, InputError, "/nowhere is no committed index"),
        ({"kind": "dense"}, InputError, "build it with --kind dense"),
        ({"topk": 5}, InputError, "--topk 5 is larger than the corpus"),
    ],
)
def test_what_it_cannot_serve_is_said(index: Path, change: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said), serving(*make_retriever(RetrieverSettings(**{"index": str(index), **change}))):
        pass


def test_a_client_that_sends_slowly_blocks_nobody(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b'POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"que')
        begun = time.monotonic()
        for _ in range(20):
            post(url, "/retrieve", {"queries": ["dog"]})
        assert time.monotonic() - begun < 3


def test_a_search_outlives_a_restart_of_the_server(index: Path) -> None:
    """Killed in the middle of many searches and started again on the same port: every search is answered."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    back, stop = threading.Event(), threading.Event()

    def servers() -> None:
        with serving(*make_retriever(RetrieverSettings(index=str(index))), port=port):
            back.set()
            time.sleep(0.3)
        time.sleep(0.5)
        with serving(*make_retriever(RetrieverSettings(index=str(index))), port=port):
            stop.wait(20)

    thread = threading.Thread(target=servers)
    thread.start()
    assert back.wait(10)
    client, answered = HttpRetriever(f"http://127.0.0.1:{port}", patience=20), []

    async def searches() -> None:
        begun = time.monotonic()
        while time.monotonic() - begun < 1.5:
            answered.extend(await asyncio.gather(*(client.search(["dog"], 2) for _ in range(8))))
        await client.close()

    asyncio.run(searches())
    stop.set()
    thread.join(20)
    assert len(answered) > 16
    assert all([p.id for p in found] == ["b", "c"] for [found] in answered)


def test_searches_of_many_episodes_travel_together(index: Path) -> None:
    with serving(*make_retriever(RetrieverSettings(index=str(index)))) as url:
        client = HttpRetriever(url)

        async def searches() -> list[Any]:
            return await asyncio.gather(
                *(client.search(["dog"], 1 + n % 2 if n != 7 else 10**6) for n in range(40)), return_exceptions=True
            )

        found = asyncio.run(searches())
        text = httpx.get(f"{url}/metrics").text
    assert isinstance(found[7], InputError)
    assert [len(hits) for n, result in enumerate(found) if n != 7 for hits in result] == [1 + n % 2 for n in range(40) if n != 7]
    assert f'rolecast_http_requests_total{{route="/retrieve",status="200"}} {2.0}' in text


def test_one_bad_search_does_not_spoil_the_request_that_it_travels_in(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    retrieve = HttpRetriever._retrieve

    async def picky(self: HttpRetriever, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if "refused" in queries:
            raise InputError("refused")
        return await retrieve(self, queries, k)

    monkeypatch.setattr(HttpRetriever, "_retrieve", picky)
    client = HttpRetriever(url)

    async def searches() -> list[Any]:
        return await asyncio.gather(*(client.search([q], 2) for q in ("dog", "refused", "\ud800", "cat")), return_exceptions=True)

    dog, refused, half, cat = asyncio.run(searches())
    assert [[p.id for p in hits] for [hits] in (dog, cat)] == [["b", "c"], ["a"]]
    assert str(refused) == "refused"
    assert isinstance(half, InputError)


def test_a_retriever_that_is_gone_fails_all_who_wait_at_once() -> None:
    client = HttpRetriever("http://127.0.0.1:9", patience=0.5)

    async def searches() -> list[Any]:
        return await asyncio.gather(*(client.search(["dog"], 1) for _ in range(50)), return_exceptions=True)

    begun = time.monotonic()
    assert all("ROLECAST_RETRIEVER_URL" in str(error) for error in asyncio.run(searches()))
    assert time.monotonic() - begun < 5


TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
ODD = st.text(alphabet=st.sampled_from('"\\\nnt/u0a \r\t'))


@given(TEXT | ODD, TEXT | ODD)
def test_titles_and_texts_survive_the_wire(title: str, text: str) -> None:
    assert title_and_text(contents(title, text)) == (title, text)


@pytest.mark.parametrize("title", ["Cats", "", 'The "X" Files', "it's", "a, b", "Ünï"])
def test_ordinary_titles_are_written_as_search_r1_reads_them(title: str) -> None:
    assert contents(title, "text\nmore") == f'"{title}"\ntext\nmore'
    assert split_contents(contents(title, "text\nmore")) == (title, "text\nmore")
