"""One index in the place of another while clients search."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolecast import room
from rolecast.retriever import version
from rolecast.retriever.app import make_retriever
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.retriever.version import Version, within
from rolecast.store.local import LocalStore
from rolecast.types import Passage
from tests.live import serving


def build(path: Path, name: str, **options: Any) -> Path:
    build_index([Passage(f"{name}{n}", "", f"dog number {n} of {name}") for n in range(50)], path / name, "bm25", **options)
    return path / name


@pytest.fixture
def blue(tmp_path: Path) -> Path:
    return build(tmp_path, "blue")


@pytest.fixture
def green(tmp_path: Path) -> Path:
    return build(tmp_path, "green")


def settings(index: Path, **more: Any) -> RetrieverSettings:
    return RetrieverSettings(**{"index": str(index), "topk": 2, "swaps_from": str(index.parent), **more})


def swap(url: str, index: Path | str) -> httpx.Response:
    return httpx.post(f"{url}/v1/index", json={"index": str(index)}, timeout=30)


def served(url: str) -> str:
    [found] = httpx.post(f"{url}/retrieve", json={"queries": ["dog"], "topk": 1}).json()["result"]
    return str(found[0]["id"]).rstrip("0123456789")


def digest(url: str) -> str:
    ready = httpx.get(f"{url}/readyz").json()
    assert ready == {"status": "ready", "index": httpx.get(f"{url}/v1/index").json()["digest"]}
    return str(ready["index"])


def test_a_swap_drops_no_request_and_answers_each_from_one_index(blue: Path, green: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, answers, faults = threading.Event(), list[tuple[int, set[str]]](), list[str]()
    search = LocalRetriever.search

    async def slow(self: LocalRetriever, queries: Any, k: int) -> Any:
        time.sleep(0.01)  # requests are waiting and in the middle of a search whenever the swap comes
        return await search(self, queries, k)

    monkeypatch.setattr(LocalRetriever, "search", slow)
    with serving(*make_retriever(settings(blue, max_batch=4))) as url:

        def ask() -> None:
            with httpx.Client() as client:
                while not stop.is_set():
                    reply = client.post(f"{url}/retrieve", json={"queries": ["dog"] * 6, "topk": 3})
                    if reply.status_code != 200:
                        faults.append(reply.text)
                        return
                    result = reply.json()["result"]
                    answers.append((len(result), {hit["id"].rstrip("0123456789") for hits in result for hit in hits}))

        clients = [threading.Thread(target=ask) for _ in range(6)]
        for client in clients:
            client.start()
        for index in (green, blue, green):
            time.sleep(0.2)
            reply = swap(url, index)
            assert reply.status_code == 200, reply.text
            assert reply.json()["digest"] == digest(url)
            assert served(url) == index.name
        stop.set()
        for client in clients:
            client.join(20)
    assert faults == []
    assert {count for count, _ in answers} == {6}
    assert all(len(names) == 1 for _, names in answers)
    assert {name for _, names in answers for name in names} == {"blue", "green"}


def test_the_index_of_before_answers_until_the_new_one_is_warm(blue: Path, green: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, go = threading.Event(), threading.Event()
    open_index = version._open_index

    def held_up(*given: Any) -> LocalRetriever:
        opening.set()
        assert go.wait(20)
        return open_index(*given)

    with serving(*make_retriever(settings(blue))) as url:
        before = digest(url)
        monkeypatch.setattr(version, "_open_index", held_up)
        thread = threading.Thread(target=swap, args=(url, green))
        thread.start()
        assert opening.wait(20)
        assert (served(url), digest(url)) == ("blue", before)
        second = swap(url, green)
        assert (second.status_code, "another index is being opened" in second.text) == (400, True)
        go.set()
        thread.join(20)
        assert (served(url), digest(url) != before) == ("green", True)


def test_an_index_that_cannot_be_served_changes_nothing(blue: Path, green: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (green / "corpus.jsonl").write_text("{}")
    build_index([Passage("one", "", "dog")], tmp_path / "small", "bm25")
    with serving(*make_retriever(settings(blue))) as url:
        before = digest(url)
        for index, status, said in (
            (green, 500, "does not match the manifest"),
            (tmp_path / "nowhere", 404, "nowhere is no committed index"),
            (tmp_path / "small", 400, "--topk 2 is larger than the corpus (1 passages)"),
        ):
            reply = swap(url, index)
            assert (reply.status_code, said in reply.text) == (status, True), reply.text
        monkeypatch.setattr(room, "free_memory", lambda: 1000)
        reply = swap(url, build(tmp_path, "red"))
        assert (reply.status_code, "red beside the index that is served takes" in reply.text) == (400, True), reply.text
        assert "1,000" not in reply.text
        assert (served(url), digest(url)) == ("blue", before)


def test_an_index_that_is_not_in_a_bucket_is_said_not_to_be_there(blue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "open_store", lambda uri: LocalStore(tmp_path))
    with serving(*make_retriever(settings(blue, swaps_from="s3://b/indexes"))) as url:
        reply = swap(url, "s3://b/indexes/nowhere")
        assert (reply.status_code, "s3://b/indexes/nowhere is no committed index; make one" in reply.text) == (404, True), reply.text


def test_only_what_lies_where_the_service_was_told_is_swapped_in(blue: Path, green: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for parent, said in (("", "takes none; start it with --swaps-from"), (str(inner), f"takes those under {inner}")):
        with serving(*make_retriever(settings(blue, swaps_from=parent))) as url:
            reply = swap(url, green)
            assert (reply.status_code, said in reply.text) == (400, True), reply.text
            assert served(url) == "blue"
    assert within(str(inner / "a"), str(inner))
    assert not within(str(inner / ".." / "green"), str(inner))
    (inner / "link").symlink_to(green)
    assert not within(str(inner / "link"), str(inner))
    assert within("s3://b/indexes/a", "s3://b/indexes")
    assert not any(
        within(place, "s3://b/indexes") for place in ("s3://b/indexes2/a", "s3://b/indexes/../a", "s3://c/a", "/s3:/b/indexes/a")
    )


def test_an_index_is_given_up_when_it_is_closed_not_when_the_collector_comes_by(blue: Path) -> None:
    """Else a swap has three in memory: the one of before, the one that answers and the new one."""

    async def closed() -> tuple[object, int]:
        opened = await Version.opened(settings(blue), str(blue), lambda size: None)
        await opened.search(["dog"], 1)
        held = weakref.ref(opened.retriever)
        await opened.close()
        del opened
        return held(), len(list(Path("/proc/self/fd").iterdir()))

    async def twice() -> None:
        _, before = await closed()
        for _ in range(3):
            held, files = await closed()
            assert held is None
            for _ in range(200):  # its thread ends meanwhile
                if files <= before:
                    break
                await asyncio.sleep(0.01)
                files = len(list(Path("/proc/self/fd").iterdir()))
            assert files <= before

    gc.disable()
    try:
        asyncio.run(twice())
    finally:
        gc.enable()
