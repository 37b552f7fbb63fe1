"""What only the S3 adapter has: errors of endpoint, bucket and credentials in one line, bounded retries, lost answers."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from urllib3.exceptions import ProtocolError

from rolecast.errors import InputError, RolecastError, StoreError, WrongStoreError
from rolecast.retries import Tries
from rolecast.store import s3
from rolecast.store.s3 import S3Store
from tests.weed import S3Server

SECRET = "do-not-print-me"


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits of the store's, on a clock that nothing else moves."""
    waits: list[float] = []
    monkeypatch.setattr(s3, "Tries", lambda patience: Tries(patience, lambda: sum(waits)))
    monkeypatch.setattr(s3, "time", SimpleNamespace(sleep=waits.append))
    return waits


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
    ("status", "body", "kind", "again"),
    [
        (503, b"", "application/xml", True),
        (502, b"<html>bad gateway</html>", "text/html", True),
        (500, b"<Error><Code>InternalError</Code><Message>oops</Message></Error>", "application/xml", True),
        (500, b"<Error><Code>Unheard</Code><Message>oops</Message></Error>", "application/xml", True),
        (503, b"<Error><Code>SlowDown</Code><Message>slow</Message></Error>", "application/xml", True),
        (409, b"<Error><Code>OperationAborted</Code><Message>again</Message></Error>", "application/xml", True),
        (501, b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>", "application/xml", False),
        (404, b"<html>hello</html>", "text/html", False),
        (403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", "application/xml", False),
        (400, b"<Error><Code>InvalidArgument</Code><Message>bad</Message></Error>", "application/xml", False),
    ],
)
def test_what_may_pass_is_tried_again_and_nothing_else(
    answering: Callable[..., Any], status: int, body: bytes, kind: str, again: bool
) -> None:
    endpoint, seen = answering(status, body, kind)
    for call in each_call(S3Store(endpoint, "bucket", "", "key", SECRET)):
        seen.clear()
        with pytest.raises(StoreError) as caught:
            call()
        assert (caught.value.exit_code == 1) is again
        assert (len(seen) > 1) == again


def test_an_outage_of_a_minute_is_waited_out(slept: list[float]) -> None:
    """As long as other services' are."""
    store = S3Store("http://127.0.0.1:9", "bucket", "", "key", SECRET)

    def back_after_a_minute() -> str:
        if sum(slept) < 60:
            raise ProtocolError("connection broken")
        return "here"

    assert store._call(back_after_a_minute) == "here"
    assert len(slept) < 30


def test_what_never_comes_back_is_given_up(slept: list[float]) -> None:
    def away() -> None:
        raise ProtocolError("connection broken")

    store = S3Store("http://127.0.0.1:9", "bucket", "", "key", SECRET)
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        store._call(away)
    assert 100 < sum(slept) <= 120
    assert max(slept) <= 7.5
    assert caught.value.exit_code == 2  # where nothing ever answered, the address is at fault
    store._call(lambda: "here")
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        store._call(away)
    assert caught.value.exit_code == 1


def test_what_is_no_s3_server_is_said(answering: Callable[..., Any]) -> None:
    endpoint, _ = answering(404, b"<html>hello</html>", "text/html")
    with pytest.raises(WrongStoreError, match="does not answer like an S3 server"):
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
