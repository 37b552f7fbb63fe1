"""What only the S3 adapter has: errors of endpoint, bucket and credentials in one line, bounded retries, lost answers."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from urllib3.exceptions import ProtocolError

from rolecast.errors import InputError, RolecastError
from rolecast.store import s3
from rolecast.store.s3 import S3Store
from tests.weed import S3Server

SECRET = "do-not-print-me"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "WAITS", (0.0, 0.0))


def each_call(store: S3Store) -> list[Callable[[], object]]:
    return [
        lambda: store.get("k"),
        lambda: store.put("k", b"x"),
        lambda: store.put("k", b"x", absent=True),
        lambda: store.committed("k"),
        lambda: store.artifacts("k"),
        lambda: store.delete("k"),
    ]


def lines_of(store: S3Store) -> set[str]:
    found = set()
    for call in each_call(store):
        with pytest.raises(RolecastError) as raised:
            call()
        found.add(str(raised.value))
    return found


def test_an_unreachable_endpoint_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    [line] = lines_of(S3Store(endpoint, "bucket", "", "key", SECRET))
    assert line == f"s3://bucket: {endpoint} cannot be reached (NewConnectionError); check ROLECAST_S3_ENDPOINT"


def test_a_missing_bucket_is_one_line(weed: S3Server) -> None:
    [line] = lines_of(S3Store(weed.endpoint, "no-such-bucket", "p", weed.access_key, weed.secret_key))
    assert line == f"s3://no-such-bucket: there is no such bucket at {weed.endpoint}; create it, or mend ROLECAST_STORE"


@pytest.mark.parametrize(("key", "secret"), [("test-access-key", SECRET), ("nobody", SECRET)])
def test_wrong_credentials_are_one_line_without_them(weed: S3Server, key: str, secret: str) -> None:
    [line] = lines_of(S3Store(weed.endpoint, "ready", "", key, secret))
    assert f"{weed.endpoint} refuses the credentials" in line
    assert "AWS_SECRET_ACCESS_KEY" in line
    assert secret not in line
    assert key not in line


@pytest.fixture
def answering() -> Iterator[Callable[..., tuple[str, list[str]]]]:
    """Starts servers that answer every request with one status and body; gives the address and the requests they saw."""
    servers = []

    def start(status: int, body: bytes = b"", kind: str = "application/xml") -> tuple[str, list[str]]:
        seen: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                seen.append(f"{self.command} {self.path}")
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

            def log_message(self, *args: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "tries"),
    [
        (503, b"", 3),
        (500, b"<Error><Code>InternalError</Code><Message>oops</Message></Error>", 3),
        (503, b"<Error><Code>SlowDown</Code><Message>slow</Message></Error>", 3),
        (403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", 1),
        (400, b"<Error><Code>InvalidArgument</Code><Message>bad</Message></Error>", 1),
    ],
)
def test_what_may_pass_is_tried_again_so_many_times(answering: Callable[..., Any], status: int, body: bytes, tries: int) -> None:
    endpoint, seen = answering(status, body)
    for call in each_call(S3Store(endpoint, "bucket", "", "key", SECRET)):
        seen.clear()
        with pytest.raises(RolecastError):
            call()
        assert len(seen) == tries


def test_what_is_no_s3_server_is_said(answering: Callable[..., Any]) -> None:
    endpoint, _ = answering(404, b"<html>hello</html>", "text/html")
    with pytest.raises(RolecastError, match="does not answer like an S3 server"):
        S3Store(endpoint, "bucket", "", "key", SECRET).get("k")


def test_no_log_line_and_no_error_holds_a_credential(answering: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    endpoint, seen = answering(503)
    for call in each_call(S3Store(endpoint, "bucket", "", "visible-key", SECRET)):
        with pytest.raises(RolecastError) as raised:
            call()
        assert raised.value.__cause__ is None
    assert "trying again" in caplog.text
    for secret in (SECRET, "visible-key", "Signature"):
        assert secret not in caplog.text
    assert any("X-Amz-Signature" in path for path in seen)  # a presigned request was made


def losing_answers(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request of the store's is carried out, but its answer does not arrive."""
    urlopen, lost = store._http.urlopen, iter([True])

    def open_(*args: Any, **options: Any) -> Any:
        reply = urlopen(*args, **options)
        if next(lost, False):
            raise ProtocolError("connection broken")
        return reply

    monkeypatch.setattr(store._http, "urlopen", open_)


def test_a_conditional_put_whose_answer_was_lost_has_won(weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(weed.endpoint, "ready", "lost", weed.access_key, weed.secret_key)
    losing_answers(store, monkeypatch)
    assert store.put("record", b"mine", absent=True)
    assert store.get("record") == b"mine"


def test_a_conditional_put_that_lost_an_answer_to_another_writer_has_not_won(weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(weed.endpoint, "ready", "lost2", weed.access_key, weed.secret_key)
    store.put("record", b"theirs")
    losing_answers(store, monkeypatch)
    assert not store.put("record", b"mine", absent=True)
    assert store.get("record") == b"theirs"


@pytest.mark.parametrize("endpoint", ["", "host:9000", "ftp://host", "http://", "http://host/path"])
def test_a_bad_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(InputError, match="ROLECAST_S3_ENDPOINT"):
        S3Store(endpoint, "bucket", "", "key", SECRET)


@pytest.mark.parametrize("bucket", ["b", "UPPER", "under_score", "a" * 64, "-a-", "a/b"])
def test_a_bad_bucket_is_refused(bucket: str) -> None:
    with pytest.raises(InputError, match="no name of a bucket"):
        S3Store("http://host:9000", bucket, "", "key", SECRET)
