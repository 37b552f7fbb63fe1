"""Telling an address how a pipeline ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from rolecast.stages.notify import URL, notify


class Hook(HTTPServer):
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hooks/a-secret-path"


class Handler(BaseHTTPRequestHandler):
    server: Hook

    def log_message(self, *args: Any) -> None: ...

    def do_POST(self) -> None:
        self.server.told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(self.server.status)
        self.end_headers()


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


def test_an_address_is_told_once(hook: Hook) -> None:
    assert notify("s3://b/runs/a", "FAILED", "# why", {URL: hook.url + "\n"})
    assert hook.told == [{"text": "# why", "place": "s3://b/runs/a", "state": "FAILED"}]


def test_without_an_address_nobody_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert not notify("a", "FAILED", "why", {})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a-secret-path", "ftp://x/a-secret-path"])
def test_an_address_that_takes_nothing_is_said_without_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not notify("a", "FAILED", "why", {URL: url})
    (line,) = capsys.readouterr().err.splitlines()
    assert URL in line
    assert "secret" not in line


def test_a_refusal_is_said(hook: Hook, capsys: pytest.CaptureFixture[str]) -> None:
    hook.status = 410
    assert not notify("a", "FAILED", "why", {URL: hook.url})
    assert "HTTP 410" in capsys.readouterr().err
