"""The retriever service over a search engine: our wire to clients, whatever is asked behind it; and a run that asks one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from rolecast.config import RunConfig
from rolecast.ports import IndexInfo
from rolecast.retriever.app import make_retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.live.search import LiveRetriever
from rolecast.retriever.settings import RetrieverSettings
from rolecast.service.client import WrongPart
from rolecast.service.state import Service
from rolecast.stages.environment import environment_of
from rolecast.stages.index import index
from rolecast.stages.run import Run
from rolecast.stages.services import open_retriever
from rolecast.types import Passage
from tests.live import serving

KEY = "sk-very-secret"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    app, service = FastAPI(), Service("engine")
    service.status = "ready"

    @app.post("/search")
    async def search(request: Request) -> Response:
        asked = await request.json()
        if asked["q"] == "forbidden":
            return JSONResponse({"message": f"no, {KEY}"}, 403)
        if asked["q"] == "strange":
            return JSONResponse({"organic": 1})
        if asked["q"] == "malformed":
            return JSONResponse({"message": "no"}, 422)
        if asked["q"] == "busy":
            return JSONResponse({}, 503)
        hits = [{"title": f"T{n}", "link": f"http://10.0.0.{n}/", "snippet": f"{asked['q']} {n}"} for n in range(1, asked["num"] + 1)]
        return JSONResponse({"organic": hits})

    with serving(app, service) as url:
        yield url


@pytest.fixture(scope="module")
def url(engine: str) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERPER_API_KEY", KEY)
        patch.setattr("rolecast.retriever.live.settings.HOSTED", {"serper": engine})
        with serving(*make_retriever(RetrieverSettings(live="serper", live_budget=60, topk=2))) as url:
            yield url


def post(url: str, path: str, body: object) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=40)


def test_clients_are_answered_in_the_wire_of_an_index(url: str) -> None:
    found = [{"id": f"http://10.0.0.{n}/", "contents": f'"T{n}"\ndog {n}'} for n in (1, 2)]
    assert post(url, "/retrieve", {"queries": ["dog", ""], "topk": None}).json() == {"result": [found, []]}
    scored = [{"document": document, "score": 0.0} for document in found]
    assert post(url, "/retrieve", {"queries": ["dog"], "topk": 2, "return_scores": True}).json() == {"result": [scored]}
    assert post(url, "/search", {"questions": ["dog"], "N": 1}).json() == [{"top_k_docs": [found[0]["contents"]]}]
    about = httpx.get(f"{url}/v1/index").json()
    assert (about["kind"], about["digest"], about["shard"], about["reranked"]) == ("live", "serper", None, False)
    client = HttpRetriever(url)
    assert asyncio.run(client.info()) == IndexInfo("live", "serper")
    assert asyncio.run(client.search(["dog"], 1)) == [[Passage("http://10.0.0.1/", "T1", "dog 1")]]


def test_a_page_of_a_private_address_is_not_fetched_for_a_client(url: str) -> None:
    [page] = post(url, "/fetch", {"ids": ["http://10.0.0.1/"]}).json()["result"]
    assert page["contents"].endswith("[This page was not read: 10.0.0.1 is a private address]")
    assert post(url, "/fetch", {"ids": ["x"]}).status_code == 400
    assert 'rolecast_retriever_live_total{outcome="refused"} 1.0' in httpx.get(f"{url}/metrics").text


def test_what_an_engine_fails_of_is_told_apart(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setattr(LiveRetriever, "_searched", _impatient(LiveRetriever._searched))
    with serving(*make_retriever(RetrieverSettings(live="serper", live_url=engine, live_budget=5))) as url:
        assert post(url, "/retrieve", {"queries": ["busy"]}).status_code == 503
        refused = post(url, "/retrieve", {"queries": ["forbidden"]})
        assert (refused.status_code, KEY in refused.text) == (424, False)
        assert [post(url, "/retrieve", {"queries": [query]}).status_code for query in ("strange", "malformed")] == [424, 424]
        assert post(url, "/retrieve", {"queries": ["dog"]}).status_code == 200
        spent = post(url, "/retrieve", {"queries": ["owl"]})
        assert (spent.status_code, "5 requests of its budget" in spent.text) == (402, True)
        with pytest.raises(WrongPart, match="budget"):  # at once: another try would not be answered either
            asyncio.run(HttpRetriever(url).search(["owl"], 3))


def _impatient(searched: Any) -> Any:
    def with_no_patience(self: LiveRetriever, query: str, k: int) -> Any:
        self._client._patience = 0.0
        return searched(self, query, k)

    return with_no_patience


def test_an_engine_has_no_index_to_swap(url: str) -> None:
    assert post(url, "/v1/index", {"index": "/tmp/x"}).status_code == 400


LIVE: dict[str, Any] = {"kind": "live", "live": {"engine": "serper", "budget": 10}}


def test_a_run_asks_an_engine_where_it_would_open_an_index(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.delenv("ROLECAST_RETRIEVER_URL", raising=False)
    config = RunConfig.model_validate({"name": "r", "retriever": {"kind": "live", "live": {**LIVE["live"], "url": engine}}})
    run = Run(tmp_path, config)
    monkeypatch.setattr("rolecast.stages.index.world", lambda run: None)
    index(run)
    assert not run.index.exists()
    assert environment_of(run).index == "live serper"
    retriever = open_retriever(run)
    assert isinstance(retriever, LiveRetriever)
    found = asyncio.run(retriever.search(["dog"], 1))
    told = retriever.told()
    assert (told["engine"], told["answers"], told["deterministic"]) == ("serper", "live/1", False)
    assert told["between"][0] == told["between"][1] > 1.7e9
    assert len(list((tmp_path / "live" / "1" / "search").rglob("*.json"))) == 1
    again = open_retriever(run)
    assert asyncio.run(again.search(["dog"], 1)) == found
    assert again.told() == told  # type: ignore[attr-defined]


def test_a_service_of_another_engine_or_of_an_index_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECAST_RETRIEVER_URL", url)
    assert isinstance(open_retriever(Run(tmp_path, RunConfig.model_validate({"name": "r", "retriever": LIVE}))), HttpRetriever)
    other = {"kind": "live", "live": {"engine": "searxng", "url": "http://x"}}
    with pytest.raises(Exception, match="serves live serper, the run searches live searxng"):
        open_retriever(Run(tmp_path, RunConfig.model_validate({"name": "r", "retriever": other})))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"lockstep": True, "retriever": LIVE}, "lockstep: a run repeats to the last bit, and serper finds something else tomorrow"),
        ({"retriever": {"kind": "live"}}, "needs a section live"),
        ({"retriever": {"live": LIVE["live"]}}, "leave live out"),
        ({"retriever": {**LIVE, "index": "s3://b/i"}}, "leave index out"),
    ],
)
def test_a_run_that_cannot_be_meant_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RunConfig.model_validate({"name": "r", **config})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "--index is missing"),
        ({"live": "serper"}, "budget"),
        ({"live": "searxng", "index": "/x", "live_url": "http://x"}, "leave out --index"),
        ({"live": "searxng", "swaps_from": "/x", "live_url": "http://x"}, "leave out --swaps-from"),
        ({"live": "searxng"}, "--live searxng: searxng is one of your own: give its address by url"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RetrieverSettings.model_validate(settings)
