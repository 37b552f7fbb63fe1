"""Bearer tokens: who is let in, in which shape the others hear of it, and rotation without a restart."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from rolecast.errors import InputError, RolecastError
from rolecast.judge.app import make_judge
from rolecast.judge.client import HttpJudge
from rolecast.judge.settings import JudgeSettings
from rolecast.retriever.app import make_retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.service.app import make_app
from rolecast.service.settings import ServiceSettings
from rolecast.service.state import Service
from rolecast.service.tokens import OwnToken, Tokens
from rolecast.types import Gold, Passage
from tests.live import serving

FIRST, SECOND = "first-" + "a" * 20, "second-" + "b" * 20
OPEN, CLOSED = ("/healthz", "/readyz", "/metrics"), ("/openapi.json", "/nowhere", "/v1/nowhere")


def write(path: Path, text: str) -> Path:
    """Another file in the same place, as a mounted Secret changes."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens", f"# of the first team\n{FIRST}\n\n")


@pytest.fixture
def url(file: Path) -> Iterator[str]:
    with serving(*make_judge(JudgeSettings(tokens_file=str(file)))) as url:
        yield url


def status(url: str, path: str, authorization: str = "") -> int:
    return httpx.get(url + path, headers={"authorization": authorization} if authorization else {}).status_code


def test_probes_and_metrics_are_open_and_nothing_else(url: str) -> None:
    assert [status(url, path) for path in OPEN] == [200] * 3
    assert [status(url, path) for path in CLOSED] == [401] * 3
    assert [status(url, path, f"Bearer {FIRST}") for path in CLOSED] == [200, 404, 404]


@pytest.mark.parametrize(
    ("shown", "let_in"),
    [
        (f"Bearer {FIRST}", True), (f"bearer {FIRST} ", True), (FIRST, False), (f"Basic {FIRST}", False), ("Bearer ", False), ("Bearer", False),
        (f"Bearer {FIRST[:-1]}", False), (f"Bearer {FIRST}x", False), (f"Bearer {SECOND}", False), ("Bearer # of the first team", False),
    ],
)  # fmt: skip
def test_only_a_token_of_the_file_lets_in(file: Path, shown: str, let_in: bool) -> None:
    assert (Tokens(file).caller(shown) is not None) is let_in


def test_a_refusal_says_what_to_send_and_shows_no_token(url: str) -> None:
    reply = httpx.post(f"{url}/v1/judge", json={}, headers={"authorization": f"Bearer {SECOND}"})
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer TOKEN" in reply.json()["detail"]
    assert SECOND not in reply.text
    assert FIRST not in reply.text
    assert 'status="401"' in httpx.get(f"{url}/metrics").text


def test_tokens_change_without_a_restart(url: str, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def let_in() -> list[bool]:
        return [status(url, "/openapi.json", f"Bearer {token}") == 200 for token in (FIRST, SECOND)]

    assert let_in() == [True, False]
    write(file, f"{FIRST}\n{SECOND}\n")
    assert let_in() == [True, True]
    write(file, f"{SECOND}\n")
    assert let_in() == [False, True]
    with caplog.at_level(logging.ERROR):
        write(file, "")
        assert let_in() == [False, False]
        file.unlink()
        assert let_in() == [False, False]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.startswith("nobody is let in") for line in said] == [True, True]
    write(file, f"{FIRST}\n")
    assert let_in() == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be read: No such file"), ("", "holds none"), ("# only this\n", "holds none"), ("short\n", "fewer than 16 characters")],
)
def test_a_service_does_not_start_on_a_file_without_tokens(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "tokens").write_text(text)
    with pytest.raises(InputError, match=said):
        make_judge(JudgeSettings(tokens_file=str(tmp_path / "tokens")))


def test_who_is_not_let_in_hears_of_nothing_else(file: Path) -> None:
    """Neither whether the service is ready, nor the limit of a body."""

    @asynccontextmanager
    async def start() -> AsyncIterator[None]:
        yield

    service = Service.of("echo", ServiceSettings(tokens_file=str(file), max_body_bytes=1024))
    with serving(make_app(service, start), service) as url:
        assert httpx.post(f"{url}/x", content=b"x" * 5000).status_code == 401
        service.status = "starting"
        assert httpx.post(f"{url}/x").status_code == 401
        service.status = "ready"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "index"
    build_index([Passage("a", "Cats", "red cat")], path, "bm25")
    return path


def test_clients_show_the_token_of_their_environment(file: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = write(tmp_path / "own", f"{FIRST}\n")

    async def asked(retriever: HttpRetriever, judge: HttpJudge) -> None:
        [[hit]] = await retriever.search(["cat"], 1)
        assert hit.id == "a"
        given = {"question": "q", "gold": Gold(("x",)), "prediction": "x"}
        assert (await judge.judge("answer", given)).score == 1.0

    with (
        serving(*make_retriever(RetrieverSettings(index=str(index), topk=1, tokens_file=str(file)))) as searched,
        serving(*make_judge(JudgeSettings(tokens_file=str(file)))) as judged,
    ):
        for name in ("ROLECAST_TOKEN", "ROLECAST_TOKEN_FILE"):
            monkeypatch.delenv(name, raising=False)
        for client in (HttpRetriever(searched).search(["cat"], 1), HttpJudge(judged).judge("answer", {})):
            with pytest.raises(RolecastError, match=r"401 .*; set ROLECAST_TOKEN or ROLECAST_TOKEN_FILE"):
                asyncio.run(client)  # type: ignore[arg-type]
        monkeypatch.setenv("ROLECAST_TOKEN_FILE", str(own))
        retriever, judge = HttpRetriever(searched), HttpJudge(judged)
        asyncio.run(asked(retriever, judge))
        write(file, f"{SECOND}\n")
        write(own, f"{SECOND}\n")
        asyncio.run(asked(retriever, judge))  # the same clients, with the new token
        monkeypatch.setenv("ROLECAST_TOKEN", SECOND)
        monkeypatch.delenv("ROLECAST_TOKEN_FILE")
        asyncio.run(asked(HttpRetriever(searched), HttpJudge(judged)))


def test_an_own_token_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    assert OwnToken({}).headers() == {}
    with pytest.raises(InputError, match=r"cannot be read.*ROLECAST_TOKEN_FILE"):
        OwnToken({"ROLECAST_TOKEN_FILE": str(tmp_path / "none")}).headers()
