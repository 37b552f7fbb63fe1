"""Search engines as their own wires have it, played by a server on this machine; what is spent, kept, and never shown."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from rolecast.errors import InputError, RolecastError
from rolecast.ports import IndexInfo
from rolecast.retriever.live.ledger import Ledger, SpentError
from rolecast.retriever.live.search import LiveRetriever
from rolecast.retriever.live.settings import LiveConfig
from rolecast.retriever.reranking import Reranker
from rolecast.service.state import Service
from rolecast.store.local import LocalStore
from rolecast.types import Passage
from tests.live import serving
from tests.web import Web, page

KEY = "sk-very-secret"
SETTINGS: dict[str, dict[str, Any]] = {
    "serper": {"budget": 100},
    "jina": {"budget": 100},
    "google": {"budget": 100, "collection": "012:abc"},
    "searxng": {},
    "opensearch": {"collection": "wiki", "text_field": "body.plain"},
}
Reply = Any  # JSON, a status, or a function of what was asked


class Engine:
    """Answers with `replies` in order, the last one for ever, and notes what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.delay = 0.0

    async def answer(self, request: Request) -> Response:
        body = await request.json() if request.method == "POST" else None
        self.asked.append((request.method, request.url.path, dict(request.query_params), body))
        self.headers.append(request.headers)
        await asyncio.sleep(self.delay)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        reply = reply(self.asked[-1]) if callable(reply) else reply
        return JSONResponse({"message": f"no, {KEY}"}, reply) if isinstance(reply, int) else JSONResponse(reply)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Engine]]:
    app, service, engine = FastAPI(), Service("engine"), Engine()
    service.status = "ready"

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def answer(request: Request) -> Response:
        return await engine.answer(request)

    with serving(app, service) as url:
        yield url, engine


@pytest.fixture
def asking(server: tuple[str, Engine], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[LiveRetriever, Engine]]:
    url, engine = server
    monkeypatch.setenv("THE_KEY", KEY)
    engine.asked.clear()
    engine.headers.clear()
    engine.delay = 0.0

    def made(name: str, *replies: Reply, **settings: Any) -> tuple[LiveRetriever, Engine]:
        engine.replies = list(replies)
        options = {key: settings.pop(key) for key in ("store", "reranker", "fetcher", "seen") if key in settings}
        config = {"engine": name, "url": url, "key_env": "THE_KEY", "patience": 5.0, **SETTINGS[name], **settings}
        return LiveRetriever(LiveConfig.model_validate(config), **options), engine

    return made


Asking = Callable[..., tuple[LiveRetriever, Engine]]


def search(retriever: LiveRetriever, *queries: str, k: int = 2) -> list[list[Passage]]:
    return asyncio.run(retriever.search(queries, k))


def hit(n: int, address: str, text: str, **more: Any) -> dict[str, Any]:
    return {"title": f"Title\n{n}", address: f"https://site.test/{n}", text: f"text\u200b {n}", **more}


def passage(n: int, score: float = 0.0) -> Passage:
    return Passage(f"https://site.test/{n}", f"Title {n}", f"text {n}", score)


REPLIES: dict[str, Any] = {
    "serper": {"organic": [hit(1, "link", "snippet", position=1), hit(2, "link", "snippet"), hit(3, "link", "snippet")], "credits": 1},
    "jina": {"code": 200, "data": [hit(1, "url", "content", description="short"), hit(2, "url", "description", content=""), hit(3, "url", "content")]},
    "google": {"items": [hit(1, "link", "snippet"), hit(2, "link", "snippet"), hit(3, "link", "snippet")]},
    "searxng": {"results": [hit(1, "url", "content", score=2.5), hit(2, "url", "content", score=1), hit(3, "url", "content", score=None)]},
    "opensearch": {
        "hits": {
            "hits": [
                {"_id": f"https://site.test/{n}", "_score": score, "_source": {"title": f"Title {n}", "body": {"plain": f"text {n}"}}}
                for n, score in ((1, 2.5), (2, 1.0))
            ]
        }
    },
}  # fmt: skip
SCORED = {"searxng": [2.5, 1.0], "opensearch": [2.5, 1.0]}
ASKED: dict[str, tuple[str, str, dict[str, str], Any]] = {
    "serper": ("POST", "/search", {}, {"q": "who & what?", "num": 2}),
    "jina": ("POST", "/", {}, {"q": "who & what?", "num": 2}),
    "google": ("GET", "/v1", {"cx": "012:abc", "q": "who & what?", "num": "2", "start": "1"}, None),
    "searxng": ("GET", "/search", {"q": "who & what?", "format": "json", "pageno": "1"}, None),
    "opensearch": (
        "POST", "/wiki/_search", {},
        {"size": 2, "query": {"multi_match": {"query": "who & what?", "fields": ["title", "body.plain"]}}, "_source": ["title", "body.plain"]},
    ),
}  # fmt: skip
SHOWN = {"serper": ("x-api-key", KEY), "google": ("x-goog-api-key", KEY)}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_each_engine_is_asked_and_read_in_its_own_wire(name: str, asking: Asking) -> None:
    retriever, engine = asking(name, REPLIES[name])
    assert asyncio.run(retriever.info()) == IndexInfo(
        "live", f"{name}:{SETTINGS[name]['collection']}" if "collection" in SETTINGS[name] else name
    )
    [found] = search(retriever, "who & what?")
    assert found == [passage(n, score) for n, score in zip((1, 2), SCORED.get(name, [0.0, 0.0]), strict=True)]
    assert engine.asked == [ASKED[name]]
    header, value = SHOWN.get(name, ("authorization", f"Bearer {KEY}"))
    assert engine.headers[0][header] == value
    assert engine.headers[0]["accept"] == "application/json"


@pytest.mark.parametrize("name", list(SETTINGS))
def test_an_engine_that_finds_nothing_has_no_passages(name: str, asking: Asking) -> None:
    retriever, engine = asking(name, {"hits": {"hits": []}} if name == "opensearch" else {})
    assert search(retriever, "nothing", "", "  ") == [[], [], []]
    assert {asked[3]["q"] if name in ("serper", "jina") else "nothing" for asked in engine.asked} == {
        "nothing"
    }  # an empty query costs nothing


def test_jina_says_by_a_refusal_that_it_found_nothing(asking: Asking) -> None:
    retriever, engine = asking("jina", {})
    engine.answer, before = _status(422, {"code": 422, "message": "No search results available for query x"}), engine.answer  # type: ignore[method-assign]
    try:
        assert search(retriever, "x") == [[]]
        engine.answer = _status(422, {"message": "Invalid input"})  # type: ignore[method-assign]
        with pytest.raises(RolecastError, match="jina refuses a search"):
            search(retriever, "y")
    finally:
        engine.answer = before  # type: ignore[method-assign]


def _status(status: int, body: Any) -> Any:
    async def answer(request: Request) -> Response:
        return JSONResponse(body, status)

    return answer


def test_google_and_searxng_are_asked_for_further_pages(asking: Asking) -> None:
    def ten(asked: Any) -> Any:
        start = int(asked[2].get("start", 1 + 10 * (int(asked[2].get("pageno", 1)) - 1)))
        return {
            key: [hit(n, address, text) for n in range(start, start + 10)]
            for key, address, text in (("items", "link", "snippet"), ("results", "url", "content"))
        }

    for name, k, starts in (("google", 25, ["1", "11", "21"]), ("searxng", 15, ["1", "2"])):
        retriever, engine = asking(name, ten)
        engine.asked.clear()
        [found] = search(retriever, "x", k=k)
        assert [p.id for p in found] == [f"https://site.test/{n}" for n in range(1, k + 1)]
        assert [asked[2].get("start", asked[2].get("pageno")) for asked in engine.asked] == starts


def test_hits_that_are_there_twice_or_have_no_address_are_left_out(asking: Asking) -> None:
    retriever, _ = asking(
        "serper", {"organic": [hit(1, "link", "snippet"), {"title": "none"}, hit(1, "link", "snippet"), hit(2, "link", "snippet")]}
    )
    assert [p.id for p in search(retriever, "x", k=5)[0]] == ["https://site.test/1", "https://site.test/2"]


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("reply", [{"organic": 1, "data": "x", "items": {}, "results": [1], "hits": []}, ["x"], "x"])
def test_an_answer_of_another_shape_is_an_error_that_names_the_engine(name: str, reply: Any, asking: Asking) -> None:
    retriever, _ = asking(name, reply)
    with pytest.raises(RolecastError, match=name):
        search(retriever, "x")


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("status", [401, 403, 400, 429, 500])
def test_the_key_is_in_no_address_no_message_and_no_log(name: str, status: int, asking: Asking, caplog: pytest.LogCaptureFixture) -> None:
    retriever, engine = asking(name, status, patience=0.0)
    with caplog.at_level(logging.DEBUG), pytest.raises(RolecastError) as fault:
        search(retriever, "x")
    assert engine.headers
    assert KEY not in str(fault.value) + caplog.text + str(engine.asked) + repr(retriever.config) + retriever.config.model_dump_json()


def test_opensearch_takes_a_user_with_a_password(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_KEY", "me:pass")
    retriever, engine = asking("opensearch", REPLIES["opensearch"], key_env="USER_KEY")
    search(retriever, "x")
    assert engine.headers[0]["authorization"] == "Basic " + base64.b64encode(b"me:pass").decode()


def test_opensearch_has_whole_documents(asking: Asking) -> None:
    docs = [{"_id": n, "found": n != "c", "_source": {"title": n.upper(), "body": {"plain": "whole"}}} for n in "bac"]
    retriever, engine = asking("opensearch", {"docs": docs})
    assert asyncio.run(retriever.fetch(["a", "b"])) == [Passage("a", "A", "whole"), Passage("b", "B", "whole")]
    assert engine.asked == [("POST", "/wiki/_mget", {}, {"ids": ["a", "b"]})]
    with pytest.raises(InputError, match="no passage 'c' in the index wiki"):
        asyncio.run(retriever.fetch(["a", "c"]))


def test_a_known_answer_is_not_asked_for_again(asking: Asking) -> None:
    seen: list[str] = []
    retriever, engine = asking("serper", REPLIES["serper"], seen=seen.append)
    now = [1000.0]
    retriever.ledger.clock = lambda: now[0]
    first = search(retriever, "x", k=3)
    assert search(retriever, "x", k=3) == first
    assert search(retriever, "x", k=1) == [first[0][:1]]
    assert len(engine.asked) == 1
    search(retriever, "x", k=4)  # more than it was asked for
    assert search(retriever, "x", k=9) == first  # fewer than were asked for: there are no more
    assert len(engine.asked) == 2
    now[0] += 86_401
    search(retriever, "x", k=3)
    assert len(engine.asked) == 3
    assert seen == ["asked", "known", "known", "asked", "known", "asked"]


def test_who_asks_the_same_at_once_is_answered_together(asking: Asking) -> None:
    retriever, engine = asking("serper", REPLIES["serper"])
    engine.delay = 0.05
    found = search(retriever, *["x"] * 20, "y")
    assert len(engine.asked) == 2
    assert found[0] == found[19]


def test_a_failure_is_not_kept(asking: Asking) -> None:
    retriever, _ = asking("serper", 403, REPLIES["serper"])
    with pytest.raises(RolecastError):
        search(retriever, "x")
    assert len(search(retriever, "x")[0]) == 2


def test_a_budget_counts_every_request_tries_among_them(asking: Asking) -> None:
    retriever, engine = asking("serper", 503, REPLIES["serper"], budget=3)
    search(retriever, "a")
    search(retriever, "b")
    with pytest.raises(SpentError, match=r"sent the 3 requests of its budget; raise live\.budget"):
        search(retriever, "c")
    assert search(retriever, "a")[0]  # what is known costs nothing
    assert len(engine.asked) == 3


def test_a_store_keeps_answers_and_budget_over_processes(asking: Asking, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first, engine = asking("serper", REPLIES["serper"], budget=3, store=store)
    found = search(first, "a")
    second, _ = asking("serper", REPLIES["serper"], budget=3, store=store)
    assert search(second, "a") == found
    assert len(engine.asked) == 1
    search(second, "b")
    search(first, "c")
    for retriever in (first, second, asking("serper", REPLIES["serper"], budget=3, store=store)[0]):
        with pytest.raises(SpentError):
            search(retriever, "d")
    assert len(engine.asked) == 3
    search(asking("serper", REPLIES["serper"], budget=4, store=store)[0], "d")  # it was raised


def test_a_budget_that_is_raised_or_lowered_counts_what_was_sent(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)

    async def sent(ledger: Ledger, most: int = 10_000) -> int:
        for n in range(most):
            try:
                await ledger.spend()
            except SpentError:
                return n
        return most

    assert asyncio.run(sent(Ledger("e", 1.0, 250, store))) == 250
    assert asyncio.run(sent(Ledger("e", 1.0, 2010, store))) == 1760  # in blocks of another size
    assert asyncio.run(sent(Ledger("e", 1.0, 100, store))) == 0
    assert asyncio.run(sent(Ledger("other", 1.0, 7, store))) == 7
    assert asyncio.run(sent(Ledger("e", 1.0, 2100, store), 5)) == 5  # and is killed: the rest of its block of 20 is lost
    assert asyncio.run(sent(Ledger("e", 1.0, 2100, store))) == 70

    async def together() -> list[int]:
        one, two = Ledger("f", 1.0, 100, store), Ledger("f", 1.0, 100, store)
        return await asyncio.gather(*(sent(ledger, 30) for ledger in (one, two, one, two, two)))

    assert sum(asyncio.run(together())) == 100


def test_what_an_engine_said_is_recorded(asking: Asking, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    retriever, _ = asking("searxng", REPLIES["searxng"], store=store)
    search(retriever, "who?")
    [key] = store.keys("live/1/search")
    record = json.loads(store.get(key) or b"")
    assert (record["engine"], record["text"], record["asked"]) == ("searxng", "who?", 2)
    assert record["at"] > 1.7e9
    assert record["passages"][0] == {"id": "https://site.test/1", "title": "Title 1", "text": "text 1", "score": 2.5}
    assert not any(KEY in path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    store.put(key, b"damaged")
    again, engine = asking("searxng", REPLIES["searxng"], store=store)
    engine.asked.clear()
    search(again, "who?")
    assert len(engine.asked) == 1


def test_pages_are_read_and_those_that_are_not_say_why(asking: Asking) -> None:
    seen: list[str] = []
    web = Web(a=page("<title>A</title>text"), b=page("x", "image/png"), c=page("", status="404 Not Found"))
    retriever, _ = asking("serper", {}, fetcher=web.fetcher(), seen=seen.append)
    urls = [f"http://site.test/{name}" for name in "abca"] + ["http://169.254.169.254/latest"]

    async def fetched() -> list[Passage]:
        async with web:
            return await retriever.fetch(urls)

    found = asyncio.run(fetched())
    assert [p.id for p in found] == urls
    assert found[0] == found[3] == Passage(urls[0], "A", "text")
    assert [p.text for p in found[1:3]] == [
        "[This page was not read: it is image/png, no text]",
        "[This page was not read: its server answers 404]",
    ]
    assert found[4].text == "[This page was not read: 169.254.169.254 is a metadata service]"
    assert sorted(seen) == ["read", "read", "refused", "refused", "unread"]
    assert len(web.dialled) == 3
    with pytest.raises(InputError, match="no passage 'd7'"):
        asyncio.run(retriever.fetch(["d7"]))


def test_a_reranker_reads_what_was_found(asking: Asking) -> None:
    retriever, engine = asking("serper", REPLIES["serper"], reranker=Reranker(lambda query, texts: [float(text[-1]) for text in texts], 3))
    assert [p.score for p in search(retriever, "x", k=2)[0]] == [3.0, 2.0]
    assert engine.asked[0][3]["num"] == 3


@pytest.mark.parametrize("k", [0, -1])
def test_an_impossible_k_is_refused(k: int, asking: Asking) -> None:
    with pytest.raises(InputError, match=f"k = {k}"):
        search(asking("searxng", {})[0], "x", k=k)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "serper"}, "paid for by the request"),
        ({"engine": "google", "budget": 1}, "cx"),
        ({"engine": "searxng"}, "give its address by url"),
        ({"engine": "opensearch", "url": "http://os:9200"}, "the index that is searched"),
        ({"engine": "opensearch", "url": "http://os:9200", "collection": "../x"}, "collection"),
        ({"engine": "searxng", "url": "http://user:pw@x"}, "no user, key"),
        ({"engine": "searxng", "url": "ftp://x"}, "http"),
        ({"engine": "jina", "budget": 1, "key_env": "A", "key_file": "b"}, "give one"),
        ({"engine": "bing"}, "engine"),
        ({"engine": "jina", "budget": 1, "key": "x"}, "key"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        LiveConfig.model_validate(settings)


def test_a_key_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    with pytest.raises(InputError, match="SERPER_API_KEY"):
        LiveRetriever(LiveConfig(engine="serper", budget=1))
    file = tmp_path / "key"
    file.write_text("k1\n")
    monkeypatch.setenv("SERPER_API_KEY_FILE", str(file))
    config = LiveConfig(engine="serper", budget=1)
    assert LiveConfig(engine="searxng", url="http://x").key() == ""
    assert config.key() == "k1"
    file.write_text("k2\n")  # a Secret that is rotated
    assert config.key() == "k2"
