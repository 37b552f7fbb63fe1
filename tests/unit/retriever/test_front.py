"""A front over shards: which shards belong together, and that there is the whole's answer or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolecast.errors import InputError
from rolecast.retriever.app import make_retriever
from rolecast.retriever.front import _layout_of, make_front, merged
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import FrontSettings, RetrieverSettings
from rolecast.retriever.shard import split
from rolecast.service.client import JsonClient, NoAnswer
from rolecast.types import Passage
from rolecast.wire.retriever import IndexReply, Shard
from tests.live import serving


def test_rankings_are_merged_by_score_and_then_in_the_order_of_the_corpus() -> None:
    words = [[(0, 3.0), (2, 1.0)], [(1, 3.0), (0, 2.0), (2, 1.0)], []]
    meaning = [[(1, 0.5)], [(0, 0.5)], [(0, 0.9)]]
    by_shard = list(zip(words, meaning, strict=True))
    assert merged(by_shard, [0, 3, 6], 4) == [[(0, 3.0), (4, 3.0), (3, 2.0), (2, 1.0)], [(6, 0.9), (1, 0.5), (3, 0.5)]]


# Which services belong together


def shard(number: int, of: int = 2, whole: str = "w", **more: Any) -> IndexReply:
    place = Shard(number=number, of=of, first=10 * number, passages=20, whole=whole)
    return IndexReply(**{"kind": "bm25", "digest": f"d{number}", "passages": 10, "shard": place, **more})


def alone(kind: str, **more: Any) -> IndexReply:
    return IndexReply(kind=kind, digest=f"{kind}-digest", passages=10, **more)


def layout(*found: IndexReply) -> Any:
    return _layout_of([JsonClient("shard", f"http://s{n}") for n in range(len(found))], found)


def test_shards_are_put_in_the_order_of_the_corpus_and_are_the_whole_together() -> None:
    made = layout(shard(1), shard(0))
    assert [(one.client.url, one.first) for one in made.shards] == [("http://s1", 0), ("http://s0", 10)]
    assert (made.about.digest, made.about.kind, made.about.passages, made.rankers) == ("w", "bm25", 20, 1)
    assert layout(shard(0, kind="hybrid"), shard(1, kind="hybrid")).rankers == 2


def test_dense_indexes_of_one_encoder_may_have_been_built_apart() -> None:
    made = layout(alone("dense", encoder="e"), alone("dense", encoder="e"))
    assert ([one.first for one in made.shards], made.about.passages) == ([0, 10], 20)
    assert made.about.digest not in ("", "dense-digest")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ((shard(0),), "shard 1 of 2 is not among --shards"),
        ((shard(0), shard(0)), "http://s1 and http://s0 serve the same shard, number 0 of 2"),
        ((shard(0), shard(1, whole="other")), "http://s1 is of the index other, that at http://s0 of w"),
        ((shard(0), shard(1, kind="dense")), "http://s1 serves dense, that at http://s0 bm25"),
        ((shard(0), shard(1, reranked=True)), "http://s1 reads its hits again by a reranker"),
        ((shard(0), alone("bm25")), "http://s1 is no shard of another: its words have weights of their own"),
        ((alone("hybrid"), alone("hybrid")), "http://s0 is no shard of another"),
        ((alone("dense", encoder="e"), alone("dense", encoder="f")), "http://s1 does not say that it has the encoder of http://s0"),
        ((alone("dense"), alone("dense")), "http://s0 does not say that it has the encoder"),
    ],
)
def test_those_that_do_not_belong_together_are_refused_by_name(found: tuple[IndexReply, ...], why: str) -> None:
    with pytest.raises(InputError, match=why):
        layout(*found)


@pytest.mark.parametrize("shards", [" ", "http://a,http://a"])
def test_addresses_are_given_once_each(shards: str) -> None:
    with pytest.raises(InputError, match="--shards names no shard, or one twice"):
        make_front(FrontSettings(shards=shards))


# An answer is the whole's


def cut(folder: Path, name: str) -> list[Path]:
    build_index([Passage(f"{name}{n}", "", f"dog number{n}") for n in range(6)], folder / name, "bm25")
    split(folder / name, 2, lambda number: nullcontext(folder / f"{name}-{number}"))
    return [folder / f"{name}-{number}" for number in range(2)]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[ExitStack, list[str]]]:
    """Two shards; the stack stops the second one."""
    paths = cut(tmp_path, "blue")
    settings = [RetrieverSettings(index=str(path), topk=1, swaps_from=str(tmp_path)) for path in paths]
    with serving(*make_retriever(settings[0])) as first, ExitStack() as second:
        yield second, [first, second.enter_context(serving(*make_retriever(settings[1])))]


def ask(url: str, path: str = "/retrieve", **body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body or {"queries": ["dog", "number4"], "topk": 6}, timeout=30)


def ids(reply: httpx.Response) -> list[list[str]]:
    assert reply.status_code == 200, reply.text
    return [[document["id"] for document in found] for found in reply.json()["result"]]


def test_without_one_shard_there_is_no_answer(services: tuple[ExitStack, list[str]]) -> None:
    second, urls = services
    with serving(*make_front(FrontSettings(shards=" ".join(urls), patience=0.2))) as url:
        assert ids(ask(url)) == [[f"blue{n}" for n in range(6)], ["blue4"]]
        second.close()
        for reply in (ask(url), ask(url, queries=["number0"]), ask(url, "/search", questions=["dog"]), ask(url, "/fetch", ids=["blue0"])):
            assert reply.status_code == 503
            assert urls[1] in reply.json()["detail"]
            assert "blue" not in reply.text


def test_a_front_without_one_shard_does_not_start(services: tuple[ExitStack, list[str]]) -> None:
    second, urls = services
    second.close()
    with pytest.raises(NoAnswer, match=urls[1]), serving(*make_front(FrontSettings(shards=",".join(urls), patience=0.1))):
        pass


def test_an_answer_never_mixes_two_versions(services: tuple[ExitStack, list[str]], tmp_path: Path) -> None:
    _, urls = services
    green = cut(tmp_path, "green")
    with serving(*make_front(FrontSettings(shards=",".join(urls)))) as url:
        before = httpx.get(f"{url}/v1/index").json()["digest"]
        assert ask(urls[0], "/v1/index", index=str(green[0])).status_code == 200
        for _ in range(2):  # found out by the answer, then by looking
            reply = ask(url, queries=["dog"], topk=6)
            assert (reply.status_code, "green" in reply.text.replace(str(tmp_path), "")) == (503, False)
        assert ask(urls[1], "/v1/index", index=str(green[1])).status_code == 200
        assert ids(ask(url, queries=["dog"], topk=6)) == [[f"green{n}" for n in range(6)]]
        assert httpx.get(f"{url}/readyz").json()["index"] == httpx.get(f"{url}/v1/index").json()["digest"] != before


def test_passages_are_fetched_from_whichever_shard_has_them(services: tuple[ExitStack, list[str]]) -> None:
    with serving(*make_front(FrontSettings(shards=",".join(services[1])))) as url:
        found = ask(url, "/fetch", ids=["blue5", "blue0", "blue5"]).json()["result"]
        assert [document["id"] for document in found] == ["blue5", "blue0", "blue5"]
        refused = ask(url, "/fetch", ids=["blue5", "red0"])
        assert (refused.status_code, refused.json()["detail"]) == (400, "no passage 'red0' in the index")


# What a shard is asked


def test_a_shard_refuses_rows_it_lacks_and_more_hits_than_it_gives(services: tuple[ExitStack, list[str]]) -> None:
    url = services[1][0]
    reply = ask(url, "/v1/passages", rows=[0, 3])
    assert (reply.status_code, reply.json()["detail"]) == (400, "row 3 is beyond the index's 3 passages")
    assert ask(url, "/v1/rankings", queries=["dog"] * 8, depth=2**15).status_code == 400
    told = ask(url, "/v1/rankings", queries=["number2", "no"], depth=5).json()
    assert [[[row for row, _ in ranking] for ranking in of] for of in told["rankings"]] == [[[2]], [[]]]
    assert told["index"] == httpx.get(f"{url}/v1/index").json()["digest"]
