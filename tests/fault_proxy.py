"""A proxy before a real server that does to chosen requests what networks and servers do: cut, delay, refuse, damage, forget a header.

It passes requests on with their Host, so that signatures stay valid. A fault is for the next `times` requests that its `when` takes.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal["cut request", "cut answer", "lose answer", "503", "truncate", "flip", "slow", "unconditional"]
When = Callable[[str, str], bool]  # method and path


@dataclass
class Fault:
    """`cut request`: the connection goes before the server hears of it; `cut answer`: within the answer's body; `lose answer`: after the
    server did as it was told; `truncate` and `flip`: an answer that looks whole and is not.
    """

    kind: Kind
    when: When
    times: int = 10**9
    seconds: float = 0.0
    met: int = 0


@dataclass
class Proxy:
    url: str
    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.seen.append((method, path))
            for fault in self.faults:
                if fault.met < fault.times and fault.when(method, path):
                    fault.met += 1
                    return fault
        return None


@contextmanager
def faulty(endpoint: str) -> Iterator[Proxy]:
    """Before the server at `endpoint`."""
    target = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            fault = proxy.next(self.command, self.path)
            kind = fault.kind if fault else None
            if kind == "cut request":
                self.hang_up()
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if kind == "503":
                self.answer(503, [("Content-Type", "application/xml")], b"<Error><Code>SlowDown</Code><Message>m</Message></Error>")
                return
            if fault and kind == "slow":
                time.sleep(fault.seconds)
            left_out = {"if-none-match"} if kind == "unconditional" else set()
            there = http.client.HTTPConnection(target, timeout=60)
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in left_out | {"connection"}:
                    there.putheader(name, value)
            there.endheaders(body or None)
            reply = there.getresponse()
            data = reply.read()
            headers = [(n, v) for n, v in reply.getheaders() if n.lower() not in ("content-length", "transfer-encoding", "connection")]
            there.close()
            if kind == "lose answer":
                self.hang_up()
            elif kind == "truncate":
                self.answer(reply.status, headers, data[: len(data) // 2])
            elif kind == "flip":
                self.answer(reply.status, headers, data[:-1] + bytes([data[-1] ^ 1]))
            elif kind == "cut answer":
                self.answer(reply.status, headers, data[: len(data) // 2], len(data))
                self.hang_up()
            else:
                length = reply.getheader("content-length") if self.command == "HEAD" else None
                self.answer(reply.status, headers, data, int(length) if length else None)

        def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, length: int | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def hang_up(self) -> None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = Proxy(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
