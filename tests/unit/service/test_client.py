"""The JSON client: what is tried again, for how long, and what is said at the end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from rolecast.errors import InputError, RolecastError
from rolecast.service.client import JsonClient, NoAnswer, NoSuchRoute, WrongPart
from rolecast.service.logs import REQUEST_ID
from rolecast.service.state import Service
from tests.live import serving


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def client(self, url: str, **options: Any) -> JsonClient:
        return JsonClient("retriever", url, sleep=self.sleep, clock=lambda: self.now, **options)


class Script:
    """Answers with these replies in order, the last one for ever."""

    def __init__(self) -> None:
        self.replies: list[Response] = []
        self.seen: list[dict[str, str]] = []

    def answer(self, request: Request) -> Response:
        self.seen.append(dict(request.headers))
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Script]]:
    app, service, script = FastAPI(), Service("script"), Script()
    service.status = "ready"

    @app.api_route("/x", methods=["GET", "POST"])
    async def answer(request: Request) -> Response:
        return script.answer(request)

    with serving(app, service) as url:
        yield url, script


def reply(status: int, text: str = '{"detail": "why"}', **headers: str) -> Callable[[], Response]:
    return lambda: Response(text, status, headers={name.replace("_", "-"): value for name, value in headers.items()})


OK = reply(200, '{"ok": 1}')


def ask(server: tuple[str, Script], clock: Clock, *replies: Callable[[], Response], **options: Any) -> Any:
    url, script = server
    script.replies, script.seen = [make() for make in replies], []
    return asyncio.run(clock.client(url, **options).post("/x", {}))


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_what_may_pass_is_tried_again(server: tuple[str, Script], status: int) -> None:
    clock = Clock()
    assert ask(server, clock, reply(status), reply(status), OK) == {"ok": 1}
    assert len(clock.slept) == 2
    assert clock.slept[0] < clock.slept[1]


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, InputError), (401, WrongPart), (404, NoSuchRoute), (405, NoSuchRoute), (413, WrongPart), (422, InputError)],
)
def test_a_refusal_is_final(server: tuple[str, Script], status: int, error: type[RolecastError]) -> None:
    clock = Clock()
    with pytest.raises(RolecastError, match="why") as raised:
        ask(server, clock, reply(status), OK)
    assert type(raised.value) is error
    assert clock.slept == []


def test_patience_ends_with_the_place_the_reason_and_the_next_step(server: tuple[str, Script]) -> None:
    clock = Clock()
    with pytest.raises(RolecastError) as raised:
        ask(server, clock, reply(503), patience=60.0)
    said = str(raised.value)
    for part in (f"retriever at {server[0]} did not answer POST /x: status 503 why", "in 60 s", "ROLECAST_RETRIEVER_URL"):
        assert part in said
    assert raised.value.exit_code == 1
    assert 40 < clock.now <= 60
    assert max(clock.slept) <= 7.5
    assert len(clock.slept) < 30


def test_without_patience_there_is_one_try(server: tuple[str, Script]) -> None:
    clock = Clock()
    with pytest.raises(RolecastError, match="tried 1 times"):
        ask(server, clock, reply(503), patience=0.0)
    assert len(server[1].seen) == 1


def test_the_server_says_how_long_to_wait(server: tuple[str, Script]) -> None:
    clock = Clock()
    ask(server, clock, reply(429, retry_after="7"), reply(503, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), OK)
    assert 7 <= clock.slept[0] <= 10.5
    with pytest.raises(RolecastError, match="status 429"):
        ask(server, Clock(), reply(429, retry_after="3600"), OK)  # longer than anybody waits


def test_no_json_is_an_error(server: tuple[str, Script]) -> None:
    with pytest.raises(RolecastError, match="without JSON; is it the retriever"):
        ask(server, Clock(), reply(200, "<html>"))


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    clock = Clock()
    with pytest.raises(RolecastError, match="ConnectError") as caught:
        asyncio.run(clock.client(url, patience=5.0).post("/x", {}))
    assert 2 < clock.now <= 5
    assert caught.value.exit_code == 2  # nothing ever answered there


def test_a_server_that_does_not_answer_in_time_is_tried_again() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as sock:  # accepts, and says nothing
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(RolecastError, match="ReadTimeout"):
            asyncio.run(clock.client(url, patience=0.5, timeout=0.05).post("/x", {}))
    assert clock.slept


def test_a_connection_that_breaks_without_an_answer_is_tried_again() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + b'{"ok": 1}'
    parts = [b"", answer[:10], answer[:-3], answer]  # what was sent before the server was killed

    def killed(sock: socket.socket) -> None:
        for part in parts:
            connection, _ = sock.accept()
            connection.recv(10_000)
            connection.sendall(part)
            connection.close()

    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        threading.Thread(target=killed, args=(sock,), daemon=True).start()
        assert asyncio.run(clock.client(f"http://127.0.0.1:{sock.getsockname()[1]}").post("/x", {})) == {"ok": 1}
    assert len(clock.slept) == 3


def test_the_request_id_travels(server: tuple[str, Script]) -> None:
    token = REQUEST_ID.set("r-7")
    ask(server, Clock(), OK)
    REQUEST_ID.reset(token)
    assert server[1].seen[0]["x-request-id"] == "r-7"


def test_one_client_serves_several_event_loops(server: tuple[str, Script]) -> None:
    url, script = server
    script.replies = [OK()]
    client = Clock().client(url)
    for _ in range(3):
        assert asyncio.run(client.post("/x", {})) == {"ok": 1}


@pytest.mark.parametrize("url", ["", "host:80", "ftp://host"])
def test_a_bad_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="ROLECAST_RETRIEVER_URL"):
        JsonClient("retriever", url)


def test_waiting_for_a_turn_costs_no_patience() -> None:
    """Twelve requests, two at once, to a part that takes long. The last two fail once, long after they were made."""
    app, service, clock = FastAPI(), Service("slow"), Clock()
    service.status = "ready"
    seen: dict[str, int] = {}

    @app.post("/x")
    async def answer(request: Request) -> Response:
        number = (await request.body()).decode()
        seen[number] = seen.get(number, 0) + 1
        clock.now += 8.0
        return reply(503)() if number in ("10", "11") and seen[number] == 1 else OK()

    with serving(app, service) as url:
        client = clock.client(url, patience=60.0, concurrency=2)

        async def many() -> list[Any]:
            return await asyncio.gather(*(client.post("/x", number) for number in range(12)))

        assert asyncio.run(many()) == [{"ok": 1}] * 12
    assert clock.now > 100


def test_an_outage_costs_its_patience_once(server: tuple[str, Script]) -> None:
    clock, (url, script) = Clock(), server
    script.replies, script.seen = [reply(503)()], []
    client = clock.client(url, patience=60.0)
    for _ in range(3):
        with pytest.raises(NoAnswer):
            asyncio.run(client.post("/x", {}))
    assert clock.now <= 60
    script.replies = [OK()]
    assert asyncio.run(client.post("/x", {})) == {"ok": 1}  # it is back
    script.replies, before = [reply(503)()], clock.now
    with pytest.raises(NoAnswer):
        asyncio.run(client.post("/x", {}))
    assert clock.now > before + 40


def test_only_the_way_to_a_part_outside_leads_through_a_proxy(server: tuple[str, Script], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert ask(server, Clock(), OK) == {"ok": 1}
    with pytest.raises(NoAnswer, match="ConnectError"):
        ask(server, Clock(), OK, outside=True, patience=0.0)


@pytest.mark.parametrize(
    "text", ['{"detail": "why"}', '{"error": "why"}', '{"error": {"message": "why", "type": "t", "param": null, "code": null}}', "why"]
)
def test_why_is_read_in_every_shape(server: tuple[str, Script], text: str) -> None:
    with pytest.raises(InputError, match=r"^why$"):
        ask(server, Clock(), reply(400, text))


def test_a_part_outside_is_named_where_it_refuses(server: tuple[str, Script]) -> None:
    with pytest.raises(RolecastError, match="refused POST /x: 400 why"):
        ask(server, Clock(), reply(400), outside=True)
    with pytest.raises(RolecastError) as raised:
        ask(server, Clock(), reply(401), outside=True)
    assert "ROLECAST_TOKEN" not in str(raised.value)
