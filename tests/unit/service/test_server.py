"""The frame of a service: probes, limits, errors, metrics, and a drained end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from rolecast.errors import ArtifactError, InputError, RolecastError
from rolecast.service import server as server_module
from rolecast.service.app import make_app
from rolecast.service.errors import Overloaded
from rolecast.service.server import Server, listening, serve
from rolecast.service.settings import ServiceSettings
from rolecast.service.state import Service
from tests.live import serving


class Body(BaseModel):
    text: str


ROUTES = "GET /openapi.json, GET /healthz, GET /readyz, GET /metrics, POST /echo, POST /slow/{seconds}, POST /fails/{how}"
ERRORS: dict[str, Exception] = {
    "input": InputError("k is too large; lower k"), "named": ArtifactError("x is damaged"), "bug": KeyError("who knows"), "full": Overloaded("later"),
}  # fmt: skip


def make(gate: threading.Event | None = None, fails: Exception | None = None) -> tuple[FastAPI, Service]:
    service = Service("echo", max_body_bytes=1000)

    @asynccontextmanager
    async def start() -> AsyncIterator[None]:
        if fails:
            raise fails
        while gate is not None and not gate.is_set():
            await anyio.sleep(0.01)
        yield

    app = make_app(service, start)

    @app.post("/echo")
    async def echo(body: Body) -> Body:
        return body

    @app.post("/slow/{seconds}")
    async def slow(seconds: float) -> dict[str, str]:
        await anyio.sleep(seconds)
        return {"done": "yes"}

    @app.post("/fails/{how}")
    async def fail(how: str) -> None:
        raise ERRORS[how]

    return app, service


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(*make()) as url:
        yield url


def eventually(check: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.02)
    return False


def test_probes_answer_and_work_is_done(url: str) -> None:
    assert httpx.get(f"{url}/healthz").json() == {"status": "alive"}
    assert httpx.get(f"{url}/readyz").json() == {"status": "ready"}
    assert httpx.post(f"{url}/echo", json={"text": "ü"}).json() == {"text": "ü"}


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/fails/input", 400, "k is too large; lower k"),
        ("/fails/named", 500, "x is damaged"),
        ("/fails/bug", 500, "internal error: KeyError"),
        ("/fails/full", 429, "later"),
        ("/nowhere", 404, f"there is no POST /nowhere; this service has {ROUTES}"),
        ("/healthz", 405, "there is no POST /healthz; this path takes GET"),
        ("/a%0Ab", 404, f"there is no POST /a\\nb; this service has {ROUTES}"),
        (f"/{'x' * 5000}", 404, f"there is no POST /{'x' * 199}…; this service has {ROUTES}"),
        ("/3", 404, f"there is no POST /3; this service has {ROUTES}"),
    ],
)
def test_errors_are_one_detail(url: str, path: str, status: int, detail: str) -> None:
    reply = httpx.post(f"{url}{path}")
    assert (reply.status_code, reply.json()) == (status, {"detail": detail})


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"text": 1}', b"{}", b'"\xff"'])
def test_a_malformed_body_is_refused_without_an_echo_of_it(url: str, body: bytes) -> None:
    reply = httpx.post(f"{url}/echo", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert isinstance(reply.json()["detail"], str)
    assert "input" not in reply.json()


def test_a_large_body_is_refused_announced_or_not(url: str) -> None:
    large = json.dumps({"text": "x" * 2000}).encode()
    chunks = (large[at : at + 100] for at in range(0, len(large), 100))
    for content in (large, chunks):
        reply = httpx.post(f"{url}/echo", content=content, headers={"content-type": "application/json"})  # type: ignore[arg-type]
        assert reply.status_code == 413
        assert "larger than 1000 bytes" in reply.json()["detail"]
    assert httpx.post(f"{url}/echo", json={"text": "x" * 900}).status_code == 200


def test_who_is_still_sending_reads_why_a_body_is_refused(url: str) -> None:
    """Closing the connection at once would reset it: more is on the way than its buffers hold."""
    large = json.dumps({"text": "x" * 10_000_000}).encode()

    async def post() -> httpx.Response:
        async with httpx.AsyncClient() as client:  # which forgets what it has received when it cannot go on sending
            return await client.post(f"{url}/echo", content=large, headers={"content-type": "application/json"})

    for _ in range(3):
        reply = asyncio.run(post())
        assert (reply.status_code, "larger than 1000 bytes" in reply.json()["detail"]) == (413, True)


def test_an_announced_large_body_is_refused_before_it_is_sent(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(("given", "kept"), [("abc-1.2", True), ("", False), ("x" * 65, False), ("a b", False), ('a"b', False)])
def test_a_request_has_an_id(url: str, given: str, kept: bool) -> None:
    answered = httpx.post(f"{url}/echo", json={"text": ""}, headers={"x-request-id": given}).headers["x-request-id"]
    assert (answered == given) is kept
    assert re.fullmatch(r"[\w.-]{1,64}", answered)


def test_metrics_count_by_declared_route() -> None:
    with serving(*make()) as url:
        for path in ("/echo", "/slow/0", "/slow/0.0", "/who/knows/1", "/who/knows/2"):
            httpx.post(f"{url}{path}", json={"text": ""})
        text = httpx.get(f"{url}/metrics").text
    assert 'rolecast_http_requests_total{route="/echo",status="200"} 1.0' in text
    assert 'rolecast_http_requests_total{route="/slow/{seconds}",status="200"} 2.0' in text
    assert 'rolecast_http_requests_total{route="unknown",status="404"} 2.0' in text
    assert "rolecast_ready 1.0" in text
    assert "rolecast_http_in_flight 0.0" in text
    assert "healthz" not in text


def run_in_thread(app: FastAPI, service: Service) -> tuple[str, threading.Thread]:
    sock = listening("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    thread = threading.Thread(target=Server(app, service, 5.0).run, args=([sock],), daemon=True)
    thread.start()
    return url, thread


def test_before_it_is_ready_only_probes_answer() -> None:
    gate = threading.Event()
    app, service = make(gate)
    url, thread = run_in_thread(app, service)
    assert eventually(lambda: httpx.get(f"{url}/healthz").status_code == 200)
    assert httpx.get(f"{url}/readyz").status_code == 503
    reply = httpx.post(f"{url}/echo", json={"text": ""})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert "starting" in reply.json()["detail"]
    gate.set()
    assert eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200)
    service.drain()
    thread.join(10)
    assert not thread.is_alive()


def test_draining_while_it_loads_ends_it() -> None:
    app, service = make(threading.Event())
    url, thread = run_in_thread(app, service)
    assert eventually(lambda: httpx.get(f"{url}/healthz").status_code == 200)
    service.drain()
    thread.join(10)
    assert not thread.is_alive()


def test_what_keeps_it_from_starting_stops_the_server() -> None:
    app, service = make(fails=RolecastError("no index"))
    _, thread = run_in_thread(app, service)
    thread.join(10)
    assert not thread.is_alive()
    assert str(service.failure) == "no index"


def test_a_taken_port_is_one_line() -> None:
    with listening("127.0.0.1", 0) as sock, pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{sock.getsockname()[1]}"):
        listening("127.0.0.1", sock.getsockname()[1])


SLEEPER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_server import make
from rolecast.service.server import serve
from rolecast.service.settings import ServiceSettings
app, service = make()
serve(app, service, ServiceSettings(host="127.0.0.1", port=int(sys.argv[2]), drain_seconds=float(sys.argv[3])))
"""


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with listening("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    command = [sys.executable, "-c", SLEEPER, str(Path(__file__).parent), str(port), str(request.param)]
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONPATH": path})
    url = f"http://127.0.0.1:{port}"
    try:
        assert eventually(lambda: _status(f"{url}/readyz") == 200, 30)
        yield child, url
    finally:
        child.kill()
        child.wait()


def _status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0


def slow_request(url: str, seconds: float) -> tuple[threading.Thread, list[Any]]:
    got: list[Any] = []

    def ask() -> None:
        try:
            got.append(httpx.post(f"{url}/slow/{seconds}", timeout=30).text)
        except httpx.TransportError as error:
            got.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert eventually(lambda: "rolecast_http_in_flight 1.0" in httpx.get(f"{url}/metrics").text)
    return thread, got


@pytest.mark.parametrize("process", [20.0], indirect=True)
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(process: tuple[subprocess.Popen[str], str], sign: signal.Signals) -> None:
    child, url = process
    thread, got = slow_request(url, 1.5)
    child.send_signal(sign)
    assert eventually(lambda: _status(f"{url}/readyz") == 503)
    assert _status(f"{url}/healthz") == 200
    assert httpx.post(f"{url}/echo", json={"text": ""}).status_code == 503  # no new work
    thread.join()
    assert got == ['{"done":"yes"}']
    assert child.wait(10) == 0
    assert child.stdout is not None
    entries = [json.loads(line) for line in child.stdout]
    assert any(entry["message"] == "draining: 1 requests in flight" for entry in entries)
    assert any(entry.get("status") == 200 and entry.get("request_id") for entry in entries)


@pytest.mark.parametrize("process", [0.3], indirect=True)
def test_what_takes_too_long_is_cut_off(process: tuple[subprocess.Popen[str], str]) -> None:
    child, url = process
    thread, got = slow_request(url, 25)
    begun = time.monotonic()
    child.terminate()
    assert child.wait(10) == 0
    assert time.monotonic() - begun < 8
    thread.join()
    assert got != ['{"done":"yes"}']


def test_all_addresses_are_those_of_both_stacks() -> None:
    app, service = make()
    with listening("::", 0) as sock:
        port = sock.getsockname()[1]
        thread = threading.Thread(target=Server(app, service, 5.0).run, args=([sock],), daemon=True)
        thread.start()
        assert eventually(lambda: _status(f"http://127.0.0.1:{port}/readyz") == 200)
        assert sock.family == socket.AF_INET or _status(f"http://[::1]:{port}/readyz") == 200
        service.drain()
        thread.join(10)


@pytest.mark.parametrize(
    "fault", [OSError(errno.EADDRNOTAVAIL, "no such address"), OSError(errno.EAFNOSUPPORT, "none"), ValueError("none")]
)
def test_without_ipv6_it_listens_on_ipv4(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def only_ipv4(*arguments: Any, **options: Any) -> socket.socket:
        if options["family"] == socket.AF_INET6:
            raise fault
        return create(*arguments, **options)

    monkeypatch.setattr(socket, "create_server", only_ipv4)
    with listening("::", 0) as sock:
        assert sock.getsockname()[0] == "0.0.0.0"
    with pytest.raises((InputError, ValueError)):
        listening("::1", 0)


def test_a_port_that_is_taken_is_taken_on_either_stack() -> None:
    with listening("::", 0) as sock, pytest.raises(InputError, match=r"cannot listen on \[::\]:"):
        listening("::", sock.getsockname()[1])


def test_metrics_and_schema_may_have_a_port_of_their_own() -> None:
    app, service = make()
    with listening("127.0.0.1", 0) as sock, listening("127.0.0.1", 0) as other:
        service.metrics_port = other.getsockname()[1]
        thread = threading.Thread(target=Server(app, service, 5.0).run, args=([sock, other],), daemon=True)
        thread.start()
        requests, metrics = (f"http://127.0.0.1:{s.getsockname()[1]}" for s in (sock, other))
        assert eventually(lambda: _status(f"{requests}/readyz") == 200)
        paths = ("/healthz", "/metrics", "/openapi.json")
        assert [_status(requests + path) for path in paths] == [200, 404, 404]
        assert [_status(metrics + path) for path in paths] == [200, 200, 200]
        posted = [httpx.post(f"{url}/echo", json={"text": "ü"}).status_code for url in (requests, metrics)]
        assert posted == [200, 404]
        away = [httpx.get(address).json()["detail"] for address in (f"{requests}/metrics", f"{metrics}/echo")]
        assert away == [
            "there is no GET /metrics at this port; that is at --metrics-port",
            "there is no GET /echo at this port; this port has /metrics and /openapi.json",
        ]
        service.drain()
        thread.join(10)
        assert not thread.is_alive()


def test_the_metrics_port_is_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(server_module, "configure_logging", lambda level: None)
    monkeypatch.setattr(Server, "run", lambda self, sockets: seen.extend(sock.getsockname()[1] for sock in sockets))
    app, service = make()
    serve(app, service, ServiceSettings(host="127.0.0.1", port=0, metrics_port=0))
    assert len(set(seen)) == 2
    assert service.metrics_port == seen[1]


@pytest.mark.parametrize("follows", [True, False])
def test_what_a_request_started_ends_with_its_caller_where_that_is_asked_for(follows: bool) -> None:
    ended: list[str] = []
    app, service = make()
    service.follows_callers = follows

    @app.post("/long")
    async def long(body: Body) -> None:
        try:
            await anyio.sleep(1.0)
            ended.append("done")
        except BaseException:
            ended.append("cancelled")
            raise

    with serving(app, service) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/long", json={"text": ""}, timeout=0.2)
        assert eventually(lambda: bool(ended), 5)
        assert ended == ["cancelled" if follows else "done"]
        assert eventually(lambda: ('status="499"' in httpx.get(f"{url}/metrics").text) is follows)
        assert httpx.post(f"{url}/echo", json={"text": "ü"}).json() == {"text": "ü"}
