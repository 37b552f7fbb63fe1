"""Logs: one JSON object a line, whatever is logged, and no secret in it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from rolecast.service.logs import REQUEST_ID
from tests.logged import logged

SECRET = 'sk-"quoted"\\secret'


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    with logged("info") as stream:
        yield stream


def read(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_every_record_is_one_object(lines: io.StringIO) -> None:
    log = logging.getLogger("part")
    log.info("two\nlines %s", "ü", extra={"fields": {"status": 200}})
    log.debug("not shown")
    try:
        raise ValueError("broken\nhere")
    except ValueError:
        log.exception("failed")
    first, second = read(lines)
    assert {key: first[key] for key in ("level", "logger", "message", "status")} == {
        "level": "info", "logger": "part", "message": "two\nlines ü", "status": 200,
    }  # fmt: skip
    assert "request_id" not in first
    assert "ValueError: broken" in second["exception"]


def test_the_request_is_named(lines: io.StringIO) -> None:
    token = REQUEST_ID.set("r-1")
    logging.getLogger("part").warning("slow")
    REQUEST_ID.reset(token)
    assert read(lines)[0]["request_id"] == "r-1"


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY"])
def test_secrets_do_not_pass(lines: io.StringIO, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SECRET)
    log = logging.getLogger("part")
    log.info("key %s", SECRET, extra={"fields": {"header": f"Bearer {SECRET}"}})
    try:
        raise ValueError(f"bad key {SECRET}")
    except ValueError:
        log.exception("refused")
    for entry in read(lines):
        assert SECRET not in str(list(entry.values()))
        assert f"[{name}]" in str(entry)


def test_clients_do_not_log_each_request(lines: io.StringIO) -> None:
    logging.getLogger("httpx").info("HTTP Request: POST http://host/secret")
    assert lines.getvalue() == ""
