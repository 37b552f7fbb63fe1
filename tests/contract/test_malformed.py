"""Malformed requests to every service, made by schemathesis from its schema: none is a fault of ours, and none hangs.

ROLECAST_MALFORMED says how many each service gets; `make test-full` sends 1,000.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode

from rolecast.agent.app import make_agent
from rolecast.agent.settings import AgentSettings
from rolecast.judge.app import make_judge
from rolecast.judge.settings import JudgeSettings
from rolecast.retriever.app import make_retriever
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.types import Passage
from tests.live import serving
from tests.small_team import small_team
from tests.tiny import tiny_model

HANGS = 10.0  # seconds
UNREAD = {"type": "object", "required": ["instances"], "properties": {"instances": {"type": "array", "items": {"type": "string"}}}}
FINE = {501}  # KServe: there is one version of a model


def retriever(folder: Path) -> AbstractContextManager[str]:
    index = folder / "index"
    if not index.exists():
        build_index([Passage("a", "Cats", "red cat"), Passage("b", "Dogs", "blue dog")], index, "bm25")
    return serving(*make_retriever(RetrieverSettings(index=str(index), topk=1)))


def judge(folder: Path) -> AbstractContextManager[str]:
    return serving(*make_judge(JudgeSettings()))


def agent(folder: Path) -> AbstractContextManager[str]:
    return serving(*make_agent(AgentSettings(run="r"), small_team(tiny_model())))


SERVICES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {"agent": agent, "retriever": retriever, "judge": judge}


@pytest.fixture(scope="module", params=SERVICES)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with SERVICES[request.param](tmp_path_factory.mktemp("service")) as url:
        yield url


def schema_of(url: str) -> Any:
    """The service's own, and for the routes of KServe that say nothing of their body what they read."""
    found = httpx.get(f"{url}/openapi.json").json()
    for operations in found["paths"].values():
        if "post" in operations:
            operations["post"].setdefault("requestBody", {"required": True, "content": {"application/json": {"schema": UNREAD}}})
    schema = schemathesis.openapi.from_dict(found)
    schema.config.update(base_url=url)
    return schema.include(method="POST").exclude(path_regex="/v2/repository|:explain")  # there nothing is read


def attack(url: str, count: int) -> Counter[int]:
    """Sends `count` malformed requests, as many to each route; how often each status came back."""
    operations = [found.ok() for found in schema_of(url).get_all_operations()]
    seen: Counter[int] = Counter()
    for number, operation in enumerate(operations):
        share = count // len(operations) + (number < count % len(operations))
        one_of(url, operation, share, seen)
    return seen


def one_of(url: str, operation: Any, share: int, seen: Counter[int]) -> None:
    session = requests.Session()
    session.trust_env = False
    named = {"model_name": "team"} if "{model_name}" in operation.path else {}  # else most would ask for other models

    @settings(
        max_examples=share, deadline=None, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode.NEGATIVE, path_parameters=named or None))
    def send(case: Case) -> None:
        reply = case.call(session=session, timeout=HANGS)
        seen[reply.status_code] += 1
        assert reply.status_code < 500 or reply.status_code in FINE, f"{case.as_curl_command()}\n{reply.status_code} {reply.text[:500]}"

    send()


def check(url: str, count: int) -> None:
    seen = attack(url, count)
    assert seen.total() >= count, seen
    refused = sum(times for status, times in seen.items() if status >= 400)
    assert refused > 0.8 * count, seen
    assert httpx.get(f"{url}/readyz").status_code == 200
    print(dict(seen))


def test_a_few_malformed_requests(url: str) -> None:
    check(url, 60)


@pytest.mark.slow
def test_many_malformed_requests(url: str) -> None:
    check(url, int(os.environ.get("ROLECAST_MALFORMED", "1000")))


HOSTILE = [
    b"", b"{", b"null", b"[]", b'"\xff"', b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"NaN", b'{"\\ud800": 1}', b'{"model": "\\ud800"}',
    b'{"model": "\\ud800", "messages": [{"role": "user", "content": "\\udfff"}]}', b'{"messages": [{"role": "user", "content": "x"}], "\\ud800": 1}',
    b'{"messages": [{"role": "user", "content": "x"}], "seed": 1' + b"0" * 5000 + b"}",
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', b'{"messages": [{"role": "user", "content": "x"}], "top_p": -Infinity}',
    b'{"messages": [{"role": "user", "content": [{"type": "\\ud800"}]}]}', b'{"instances": ["\\ud800"]}', b'{"instances": [[[[]]]]}',
    b'{"queries": ["\\ud800"]}', b'{"queries": ["x"], "topk": 1' + b"0" * 400 + b"}", b'{"ids": ["\\ud800", "\\u0000"]}',
    b'{"kind": "\\ud800", "inputs": {}}', b'{"kind": "answer", "inputs": {"\\ud800": NaN}}', b'{"kind": "answer", "inputs": {"question": 1, "gold": []}}',
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body[:40]))
def test_what_no_schema_thinks_of_is_refused_in_one_line(url: str, body: bytes) -> None:
    with httpx.Client(base_url=url, timeout=HANGS) as client:
        paths = [found.replace("{model_name}", "team") for found in client.get("/openapi.json").json()["paths"]]
        replies = {path: client.post(path, content=body, headers={"content-type": "application/json"}) for path in paths}
    for path, reply in replies.items():
        assert 400 <= reply.status_code < 500 or reply.status_code in FINE or reply.status_code == 200, f"{path}: {reply.text[:300]}"
        assert "\n" not in reply.text.strip()
        if reply.status_code == 200:  # a kind that nobody knows has no verdict
            assert reply.json()["score"] is None
