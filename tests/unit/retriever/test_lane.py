"""The short way of a search answers as the routes do, and leaves to them what it cannot answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rolecast.retriever import lane
from rolecast.retriever.app import make_retriever
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.types import Passage
from tests.live import serving

PASSAGES = [Passage("a", "Cats", "red cat"), Passage("b", 'The "X" Ünï', "blue dog dog\n漢字"), Passage("c", "", "red dog")]
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    index = tmp_path_factory.mktemp("lane") / "index"
    build_index(PASSAGES, index, "bm25")
    with serving(*make_retriever(RetrieverSettings(index=str(index), topk=2, max_body_bytes=4096, max_results=1000))) as url:
        yield url


def both(url: str, path: str, monkeypatch: pytest.MonkeyPatch, **request: Any) -> tuple[httpx.Response, httpx.Response]:
    """The reply by the short way, if it is one for it, and by the routes."""
    with httpx.Client() as client:
        short = client.post(url + path, **request)
        with monkeypatch.context() as patch:
            patch.setattr(lane, "_ROUTES", {})
            return short, client.post(url + path, **request)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(
            ("/retrieve", {"queries": ["dog", "x", "red"], "topk": k, "return_scores": s})
            for k in (None, 0, 1, 3, 3.0)
            for s in (True, False)
        ),
        ("/retrieve", {"queries": []}),
        ("/retrieve", {"queries": ["dog"] * 200, "topk": 1, "other": "key"}),
        ("/search", {"questions": ["dog", "x"], "N": 1}),
        ("/search", {"questions": []}),
        ("/retrieve", {"queries": "dog"}),
        ("/retrieve", {"queries": ["dog"], "topk": -1}),
        ("/retrieve", {"queries": ["dog"], "topk": "3"}),
        ("/retrieve", {"queries": ["dog"] * 200, "topk": 6}),
        ("/search", {"queries": ["dog"]}),
    ],
)
def test_it_answers_as_the_routes_do(url: str, path: str, body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    short, routes = both(url, path, monkeypatch, json=body)
    assert (short.status_code, short.json()) == (routes.status_code, routes.json())
    assert short.headers["content-type"] == routes.headers["content-type"]
    assert short.headers["x-request-id"] != routes.headers["x-request-id"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"queries": ["\\ud800"]}', b"\xff", b'{"queries": NaN}', b'{"queries": ["dog"]}']
)
@pytest.mark.parametrize("headers", [JSON, {}, {"content-type": "text/plain"}, {"content-type": "application/json; charset=utf-8"}])
def test_odd_bodies_are_answered_as_the_routes_do(
    url: str, content: bytes, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short, routes = both(url, "/retrieve", monkeypatch, content=content, headers=headers)
    assert (short.status_code, short.json()) == (routes.status_code, routes.json())


def chunks(body: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


def test_a_body_in_pieces_is_read_whole_and_one_that_is_too_large_is_refused(url: str) -> None:
    body = json.dumps({"queries": ["dog"] * 100}).encode()
    whole = httpx.post(f"{url}/retrieve", content=chunks(body, 7), headers=JSON)
    assert len(whole.json()["result"]) == 100
    large = json.dumps({"queries": ["dog" * 3000]}).encode()
    refused = httpx.post(f"{url}/retrieve", content=chunks(large, 1000), headers=JSON)
    assert (refused.status_code, "larger than 4096 bytes" in refused.json()["detail"]) == (413, True)


def test_it_is_counted_under_its_route(url: str) -> None:
    def count() -> float:
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith('rolecast_http_requests_total{route="/search",status="200"}')
        )

    before = count()
    httpx.post(f"{url}/search", json={"questions": ["dog"]})
    assert count() == before + 1


def test_what_most_requests_are_takes_the_short_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short: list[bytes] = []
    answer = lane.Lane._answer

    async def noted(self: lane.Lane, path: str, body: bytes) -> bytes | None:
        reply = await answer(self, path, body)
        short.append(reply or b"")
        return reply

    monkeypatch.setattr(lane.Lane, "_answer", noted)
    httpx.post(f"{url}/retrieve", json={"queries": ["dog"], "topk": 1})
    assert [json.loads(reply)["result"][0][0]["id"] for reply in short] == ["c"]
