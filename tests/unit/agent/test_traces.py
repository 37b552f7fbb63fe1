"""Traces: where they are kept and for how long, who may read them, and the links that open them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from markupsafe import escape
from prometheus_client import CollectorRegistry
from teams import OneLine, opened

from rolecast.agent import core, ids, traces
from rolecast.agent.app import make_agent
from rolecast.agent.ids import born, new_id
from rolecast.agent.links import KEY, Links, shared_key
from rolecast.agent.settings import AgentSettings
from rolecast.agent.traces import Traces
from rolecast.errors import InputError, StoreError
from rolecast.ports import Store
from rolecast.rollout.render import Renderer
from rolecast.store.local import LocalStore
from tests.live import serving
from tests.weed import S3Server

ANNE, BEN = "token-of-anne-" + "a" * 8, "token-of-ben-" + "b" * 8
DAY = 86400.0


def ask(url: str, token: str = "", question: str = "Who?") -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": question}]}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, headers=shown(token))
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()["rolecast"]
    return told


def shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def as_json(link: str) -> str:
    return link.replace("?", ".json?")


@pytest.fixture
def serve(renderer: Renderer, tmp_path: Path) -> Any:
    (tmp_path / "tokens").write_text(f"{ANNE}\n{BEN}\n")

    def served(*, tokens: bool = False, **settings: Any) -> Any:
        engine = OneLine(renderer)
        engine.gate.set()
        if tokens:
            settings["tokens_file"] = str(tmp_path / "tokens")
        return serving(*make_agent(AgentSettings(run="r", **settings), opened(engine)))

    return served


# Links


def test_a_link_opens_its_trace_until_it_expires_and_nothing_else() -> None:
    links = Links(b"k" * 32)
    query = {key: value for key, [value] in parse_qs(urlsplit(links.link("ask-1", 1000)).query).items()}
    assert links.opens("ask-1", query["expires"], query["signature"], 999.0)
    assert not links.opens("ask-1", query["expires"], query["signature"], 1000.0)
    assert not links.opens("ask-2", query["expires"], query["signature"], 0.0)
    assert not links.opens("ask-1", "9999", query["signature"], 0.0)
    assert not links.opens("ask-1", query["expires"], query["signature"][:-1], 0.0)
    assert not Links(b"l" * 32).opens("ask-1", query["expires"], query["signature"], 0.0)
    for odd in ("", "-1", "1e9", "９９９９", "9" * 5000):
        assert not links.opens("ask-1", odd, query["signature"], 0.0)
    assert not links.opens("ask-1", query["expires"], "\udcff", 0.0)


def test_of_many_replicas_the_first_makes_the_key(tmp_path: Path) -> None:
    store, keys = LocalStore(tmp_path), list[bytes]()
    threads = [threading.Thread(target=lambda: keys.append(shared_key(store))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 16
    assert len(set(keys)) == 1
    assert store.get(KEY) == keys[0]


def test_who_asked_is_kept_without_the_token() -> None:
    links = Links(b"k" * 32)
    assert links.owner(b"hash") != Links(b"l" * 32).owner(b"hash")
    assert links.owner(b"") == "everyone"


def test_an_id_says_when_it_was_made() -> None:
    one = new_id()
    assert abs(born(one) - time.time()) < 2  # type: ignore[operator]
    assert ids.day(one) == f"{datetime.now(UTC):%Y%m%d}"
    for odd in ("ask-1", "ask-20261399T000000-0123456789abcdef", f"{one}/../x", one.upper(), ""):
        assert born(odd) is None


# Who may read


def test_a_browser_opens_the_link_of_the_reply_without_a_token(serve: Any) -> None:
    with serve(tokens=True) as url:
        link = ask(url, ANNE)["trace_url"]
        page, data = httpx.get(url + link), httpx.get(url + as_json(link))
        assert (page.status_code, data.status_code) == (200, 200)
        assert "Kel Dax" in page.text
        assert as_json(link).rpartition("/")[2].replace("&", "&amp;") in page.text
        assert page.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["cache-control"] == "private, no-store"
        assert "owner" not in data.json()
        changed = link[:-1] + ("A" if link[-1] != "A" else "B")
        other = ask(url, ANNE)["trace_url"]
        swapped = other.partition("?")[0] + "?" + link.partition("?")[2]
        later = re.sub(r"expires=\d+", "expires=99999999999", link)
        for bad in (changed, swapped, later, link.partition("&")[0] + "&signature="):
            assert httpx.get(url + bad).status_code == 403, bad
        assert httpx.get(url + link.partition("?")[0]).status_code == 401


def test_a_token_reads_what_it_asked_and_nothing_of_others(serve: Any) -> None:
    with serve(tokens=True) as url:
        bare = ask(url, ANNE)["trace_url"].partition("?")[0]
        assert httpx.get(url + bare, headers=shown(ANNE)).status_code == 200
        assert httpx.get(url + bare, headers=shown(BEN)).status_code == 404
        ask(url, BEN, "Whose?")
        for token, question in ((ANNE, "Who?"), (BEN, "Whose?")):
            [line] = httpx.get(f"{url}/traces.json", headers=shown(token)).json()["traces"]
            assert (line["question"], line["answer"]) == (question, "Kel Dax")
            assert httpx.get(url + line["trace_url"]).status_code == 200
        assert httpx.get(f"{url}/traces.json").status_code == 401


def test_without_tokens_a_trace_is_opened_by_its_link_alone_and_listed_on_this_machine(serve: Any) -> None:
    with serve() as url:
        link = ask(url)["trace_url"]
        assert httpx.get(url + link).status_code == 200
        assert httpx.get(url + link.partition("?")[0]).status_code == 403  # an id stands in logs
        assert httpx.get(f"{url}/traces.json").status_code == 403
    with serve(host="127.0.0.1") as url:
        ask(url)
        assert len(httpx.get(f"{url}/traces.json").json()["traces"]) == 1


def test_pages_hold_nothing_and_are_open(serve: Any) -> None:
    with serve(tokens=True) as url:
        ask(url, ANNE, "Who-is-it?")
        for path in ("/", "/traces"):
            page = httpx.get(url + path)
            assert page.status_code == 200
            assert "Who-is-it?" not in page.text
            assert "connect-src 'self'" in page.headers["content-security-policy"]
            assert "script-src 'sha256-" in page.headers["content-security-policy"]
        assert httpx.post(f"{url}/ask", json={"question": "Who?"}).status_code == 401
        assert httpx.post(f"{url}/traces", headers=shown(ANNE)).status_code == 405


def test_the_address_of_the_page_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from rolecast.service import server
    from rolecast.service.state import Service

    monkeypatch.setattr(server, "configure_logging", lambda level: None)
    monkeypatch.setattr(server.Server, "run", lambda self, sockets: None)
    service = Service("agent")
    service.pages = frozenset({"/"})
    with caplog.at_level("INFO"):
        server.serve(object(), service, AgentSettings(run="r", port=0))  # type: ignore[arg-type]
    assert re.search(r"in a browser at http://localhost:\d{4,5}/$", caplog.records[-1].getMessage())
    assert server.address("::1", 80) == "http://[::1]:80/"


HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}


def closed(url: str, link: str) -> tuple[int, str]:
    """The status of a link that does not open, and why, as a page says it and as JSON does."""
    page, line, data = httpx.get(url + link, headers=HTML), httpx.get(url + link), httpx.get(url + as_json(link))
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "private, no-store"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    why = line.json()["detail"]
    assert why == data.json()["detail"]
    assert escape(why[1:]) in page.text
    assert "<h1>" in page.text
    assert page.status_code == line.status_code == data.status_code
    return page.status_code, why


def test_a_link_to_what_is_gone_says_why(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(host="127.0.0.1", keep_traces=1, trace_days=2) as url:
        pushed_out, link = ask(url)["trace_url"], ask(url)["trace_url"]
        id = pushed_out.partition("?")[0].removeprefix("/traces/")
        status, why = closed(url, pushed_out)
        assert (status, id in why, "only the last 1 of this process" in why) == (410, True, True)
        assert closed(url, link + "x")[0] == 403
        assert [line["trace_url"] for line in httpx.get(f"{url}/traces.json").json()["traces"]] == [link]
        old = trace(time.time() - 2 * DAY)["id"]
        monkeypatch.setattr(core, "new_id", lambda: old)
        status, why = closed(url, ask(url)["trace_url"])
        assert (status, "kept for 2 days (--trace-days), and this one is older" in why) == (410, True)
        assert httpx.get(f"{url}/traces.json").json()["traces"] == []


def test_the_link_of_a_server_before_this_one_says_so(serve: Any) -> None:
    with serve() as url:
        link = ask(url)["trace_url"]
    with serve() as url:
        status, why = closed(url, link)
        assert (status, "without --traces links end with the server's process" in why) == (403, True)


def test_a_link_to_what_the_store_did_not_take_says_so(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalStore.put

    def full(self: LocalStore, key: str, data: bytes, *, absent: bool = False) -> bool:
        if key.startswith("traces/"):
            raise StoreError("the bucket is full")
        return put(self, key, data, absent=absent)

    with serve(host="127.0.0.1", traces=str(tmp_path / "traces"), keep_traces=1) as url:
        kept = ask(url)["trace_url"]
        monkeypatch.setattr(LocalStore, "put", full)
        lost, last = ask(url)["trace_url"], ask(url)["trace_url"]
        assert httpx.get(url + last).status_code == 200  # this process has it
        status, why = closed(url, lost)
        assert (status, "the store did not take it" in why) == (410, True)
        assert [line["trace_url"] for line in httpx.get(f"{url}/traces.json").json()["traces"]] == [kept]
        monkeypatch.undo()
        with serve(traces=str(tmp_path / "traces")) as other:
            status, why = closed(other, lost)
            assert (status, "could not be written when the question was answered, or somebody deleted it" in why) == (410, True)


def test_a_token_is_told_what_is_too_old_and_nothing_of_others(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(tokens=True) as url:
        bare = ask(url, ANNE)["trace_url"].partition("?")[0]
        none = httpx.get(f"{url}/traces/{new_id()}", headers=shown(ANNE))
        others = httpx.get(url + bare, headers=shown(BEN))
        assert [reply.status_code for reply in (none, others)] == [404, 404]
        assert others.json()["detail"].replace(bare[8:], "") == none.json()["detail"].replace(none.url.path[8:], "")
        old = httpx.get(f"{url}/traces/ask-20200101T000000-{'0' * 16}", headers=shown(ANNE))
        assert (old.status_code, "is older" in old.json()["detail"]) == (410, True)


def test_a_list_is_deleted_before_what_it_links_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, deleted = LocalStore(tmp_path), list[str]()

    async def play(kept: Traces, now: list[float]) -> None:
        await kept.add(trace(now[-1] - 9 * DAY), b"anne")
        monkeypatch.setattr(store, "delete", deleted.append)
        await kept.sweep()

    in_traces(store, play)
    assert [place.count("/") for place in deleted] == [2, 1]
    assert deleted[0] == f"{deleted[1]}/of"


# Events


def test_what_happens_is_told_as_it_happens(serve: Any) -> None:
    with serve() as url:
        with httpx.stream("POST", f"{url}/ask", json={"question": "Who?"}) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            events = [json.loads(line.removeprefix("data: ")) for line in reply.iter_lines() if line.startswith("data: ")]
        assert [event["event"] for event in events] == ["thread", "thread", "done"]
        assert [[turn["kind"] for turn in event["turns"]] for event in events[:2]] == [["observation"], ["action"]]
        assert events[-1]["trace"]["answer"] == "Kel Dax"
        assert httpx.get(url + events[-1]["trace_url"]).status_code == 200
        for body in ({}, {"question": ""}, {"question": 3}, {"question": "Who?", "more": 1}):
            assert httpx.post(f"{url}/ask", json=body).status_code == 400


# The store


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "local":
        return str(tmp_path / "traces")
    weed: S3Server = request.getfixturevalue("weed")
    for name, value in weed.environ.items():
        monkeypatch.setenv(name, value)
    return f"s3://{weed.make_bucket(f'b-{uuid.uuid4().hex[:12]}')}/agent"


def test_a_link_works_on_every_replica_and_after_a_restart(serve: Any, place: str) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(serve(tokens=True, traces=place)) for _ in range(2))
        links = [ask(first, ANNE)["trace_url"], ask(second, ANNE)["trace_url"]]
        assert [httpx.get(url + link).status_code for url in (first, second) for link in links] == [200] * 4
        assert len(httpx.get(f"{second}/traces.json", headers=shown(ANNE)).json()["traces"]) == 2
        assert httpx.get(f"{second}/traces.json", headers=shown(BEN)).json()["traces"] == []
    with serve(tokens=True, traces=place) as third:
        assert [httpx.get(third + link).status_code for link in links] == [200, 200]
        bare = links[0].partition("?")[0]
        assert [httpx.get(third + bare, headers=shown(token)).status_code for token in (ANNE, BEN)] == [200, 404]


def test_a_folder_of_traces_is_for_one_user_alone(serve: Any, tmp_path: Path) -> None:
    with serve(traces=str(tmp_path / "a" / "traces")):
        assert (tmp_path / "a" / "traces").stat().st_mode & 0o077 == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot keep traces .*--traces"):
        make_agent(AgentSettings(run="r", traces=str(tmp_path / "file")))


def trace(at: float, question: str = "Who?") -> dict[str, Any]:
    id = f"ask-{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:16]}"
    return {"id": id, "question": question, "answer": "a", "status": "ok", "searches": 1, "seconds": 1.0, "answered": "x"}


def in_traces(store: Store | None, play: Callable[[Traces, list[float]], Any], **options: Any) -> Any:
    """`play` with traces whose clock is the list's last number."""
    now = [1_790_000_000.0]

    async def run() -> Any:
        kept = Traces(CollectorRegistry(), store=store, clock=lambda: now[-1], **options)
        await kept.open()
        try:
            return await play(kept, now)
        finally:
            await kept.close()

    return asyncio.run(run())


@pytest.mark.parametrize("stored", [False, True])
def test_a_trace_is_gone_after_its_days(tmp_path: Path, stored: bool) -> None:
    async def play(kept: Traces, now: list[float]) -> None:
        one = trace(now[-1])
        link = await kept.add(one, b"anne")
        query = {key: value for key, [value] in parse_qs(urlsplit(link).query).items()}
        now.append(now[0] + 2 * DAY - 1)
        assert await kept.find(one["id"]) is not None
        assert kept.opens(one["id"], query)
        assert len(await kept.latest(b"anne")) == 1
        now.append(now[0] + 2 * DAY)
        assert await kept.find(one["id"]) is None
        assert not kept.opens(one["id"], query)
        assert await kept.latest(b"anne") == []

    in_traces(LocalStore(tmp_path) if stored else None, play, days=2.0)


def test_days_that_are_over_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("traces/readme", b"of somebody")
    store.put("runs/20200101/x", b"a run")

    async def play(kept: Traces, now: list[float]) -> None:
        old, young = trace(now[-1] - 4 * DAY), trace(now[-1] - 1 * DAY)
        for one in (old, young):
            await kept.add(one, b"anne")
        await kept.sweep()
        left = store.keys("")
        assert not [key for key in left if old["id"] in key]
        assert len([key for key in left if young["id"] in key]) == 2
        assert {"traces/readme", "runs/20200101/x", KEY} <= set(left)

    in_traces(store, play, days=2.0)


@pytest.mark.parametrize("stored", [False, True])
def test_a_list_is_the_newest_first_in_parts(tmp_path: Path, stored: bool) -> None:
    async def play(kept: Traces, now: list[float]) -> None:
        for n in range(7):
            await kept.add(trace(now[-1] - (6 - n) * DAY / 3, f"q{n}"), b"anne")
        first = await kept.latest(b"anne", most=4)
        assert [line["question"] for line in first] == ["q6", "q5", "q4", "q3"]
        rest = await kept.latest(b"anne", before=first[-1]["id"], most=4)
        assert [line["question"] for line in rest] == ["q2", "q1", "q0"]
        assert await kept.latest(b"ben") == []

    in_traces(LocalStore(tmp_path) if stored else None, play)


class Away(LocalStore):
    """A store that answers when it is let, or fails."""

    def __init__(self, root: Path, fault: Exception | None) -> None:
        super().__init__(root)
        self.gate, self.fault = threading.Event(), fault

    def put(self, key: str, data: bytes, *, absent: bool = False) -> bool:
        if key.startswith("traces"):
            if self.fault is not None:
                raise self.fault
            self.gate.wait(10)
        return super().put(key, data, absent=absent)

    def get(self, key: str) -> bytes | None:
        if key.startswith("traces"):
            self.gate.wait(10)
        return super().get(key)


def test_a_store_that_is_slow_holds_no_answer_back_and_gets_the_trace_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "WRITE_SECONDS", 0.05)
    store = Away(tmp_path, None)

    async def play(kept: Traces, now: list[float]) -> str:
        begun, one = time.monotonic(), trace(now[-1])
        await kept.add(one, b"anne")
        assert time.monotonic() - begun < 1
        assert await kept.find(one["id"]) is not None  # from this process
        # Of this read alone: what closing waits for are writes to a disk, which may be busy.
        with monkeypatch.context() as short:
            short.setattr(traces, "READ_SECONDS", 0.1)
            with pytest.raises(StoreError, match="did not answer"):
                await kept.find(trace(now[-1])["id"])
        store.gate.set()
        return str(one["id"])

    id = in_traces(store, play)
    assert len([key for key in store.keys("traces") if id in key]) == 2  # closing waited for it


def test_a_trace_that_cannot_be_written_is_counted_and_costs_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()

    async def run() -> str:
        kept = Traces(registry, store=Away(tmp_path, StoreError("the bucket is gone")))
        await kept.open()
        link = await kept.add(trace(time.time(), "a-secret-question"), b"anne")
        await kept.close()
        return link

    assert asyncio.run(run()).startswith("/traces/ask-")
    assert registry.get_sample_value("rolecast_agent_traces_lost_total") == 1
    assert "the bucket is gone" in caplog.text
    assert "a-secret-question" not in caplog.text
