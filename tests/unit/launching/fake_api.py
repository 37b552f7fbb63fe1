"""An API server on 127.0.0.1 that knows as much of Kubernetes as a launcher asks for.

Progress is scripted: whenever a watch begins, the next entry of `script` runs and may change objects, so that no test depends on
time. A watch with nothing to say ends after `IDLE_SECONDS` instead of the time that the client asked for.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Resource = dict[str, Any]
IDLE_SECONDS = 0.05


@dataclass
class Fault:
    """Answers `times` matching requests with `status`; 0 closes the connection without an answer."""

    status: int
    times: int
    method: str = ""
    part: str = ""
    reason: str = "Fault"
    message: str = "scripted"


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any = None

    @property
    def permission(self) -> tuple[str, str, str]:
        """Group, resource and verb, as a Role names them."""
        parts = self.path.strip("/").split("/")
        group, rest = (parts[1] if parts[0] == "apis" else ""), parts[parts.index("namespaces") + 2 :]
        resource = rest[0] if len(rest) < 3 else f"{rest[0]}/{rest[2]}"
        if self.method != "GET":
            return group, resource, {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[self.method]
        return group, resource, "watch" if "watch" in self.query else "get" if len(rest) > 1 else "list"


@dataclass
class FakeApi:
    objects: dict[str, dict[str, Resource]] = field(default_factory=dict)  # plural -> name -> object
    logs: dict[str, list[str]] = field(default_factory=dict)  # pod -> lines, each with its timestamp
    script: deque[Callable[[], None]] = field(default_factory=deque)
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    cut_logs_after: deque[int] = field(default_factory=deque)  # lines after which a log's connection breaks
    cut_watches: int = 0  # watches that break off inside an event
    keep_deleted: bool = False  # foreground deletion that is waiting for pods

    def __post_init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.stores = Path(self._folder.name)  # of the runs, whose stores the launcher looks into
        self.lock = threading.RLock()
        self.versions = itertools.count(1)
        self.version = self.oldest = 0
        self.events: list[tuple[int, str, str, Resource]] = []
        self.uids = itertools.count(1)
        handler = type("Handler", (_Handler,), {"api": self})
        self.server = _Server(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._folder.cleanup()

    def put(self, plural: str, item: Resource, event: str = "MODIFIED") -> Resource:
        with self.lock:
            self.version = next(self.versions)
            item["metadata"]["resourceVersion"] = str(self.version)
            item["metadata"].setdefault("uid", f"uid-{next(self.uids)}")
            self.objects.setdefault(plural, {})[item["metadata"]["name"]] = item
            self.events.append((self.version, plural, event, json.loads(json.dumps(item))))
            return item

    def remove(self, plural: str, name: str) -> None:
        with self.lock:
            item = self.objects[plural][name]
            self.put(plural, item, "DELETED")
            del self.objects[plural][name]

    def compact(self) -> None:
        """Forgets history, as etcd does: who watches from before gets 410."""
        with self.lock:
            self.version = self.oldest = next(self.versions)
            self.events.clear()

    def seen(self, method: str, part: str, **query: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and part in r.path and query.items() <= r.query.items()]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no fault of the server, and what is printed of it would be in the next test's output."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def _handle(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        with self.api.lock:
            self.api.requests.append(Request(self.command, url.path, query, body))
            fault = next((f for f in self.api.faults if f.times and f.method in ("", self.command) and f.part in url.path), None)
            if fault:
                fault.times -= 1
        if fault and fault.status == 0:
            self.close_connection = True
            return None
        if fault:
            return self._status(fault.status, fault.reason, fault.message)
        parts = url.path.strip("/").split("/")
        rest = parts[parts.index("namespaces") + 2 :]  # plural, name, subresource
        if self.command == "POST":
            return self._create(rest[0], body)
        if self.command == "DELETE":
            return self._delete(rest[0], rest[1], {**query, **(body or {})})
        if self.command == "PATCH":
            return self._patch(rest[0], rest[1], body)
        if rest[-1] == "log":
            return self._log(rest[1], query)
        if query.get("watch") == "True" or query.get("watch") == "true":
            return self._watch(rest[0], query)
        if len(rest) > 1:
            return self._get(rest[0], rest[1])
        return self._list(rest[0], query)

    do_GET = do_POST = do_DELETE = do_PATCH = _handle  # noqa: N815 (the names that http.server calls)

    def _create(self, plural: str, item: Resource) -> None:
        with self.api.lock:
            if item["metadata"]["name"] in self.api.objects.get(plural, {}):
                return self._status(409, "AlreadyExists", f"{plural} {item['metadata']['name']} already exists")
            if plural == "services" and any(owner.get("blockOwnerDeletion") for owner in item["metadata"].get("ownerReferences", [])):
                return self._status(403, "Forbidden", "cannot set blockOwnerDeletion on what you can't set finalizers on")
            return self._json(201, self.api.put(plural, item, "ADDED"))

    def _get(self, plural: str, name: str) -> None:
        with self.api.lock:
            item = self.api.objects.get(plural, {}).get(name)
            return self._json(200, item) if item else self._status(404, "NotFound", f"{plural} {name} not found")

    def _patch(self, plural: str, name: str, changes: Resource) -> None:
        """JSON Merge Patch of metadata, which built-in and custom resources take; a strategic merge patch custom ones do not."""
        with self.api.lock:
            item = self.api.objects.get(plural, {}).get(name)
            if item is None:
                return self._status(404, "NotFound", f"{plural} {name} not found")
            if self.headers["content-type"] != "application/merge-patch+json":
                return self._status(415, "UnsupportedMediaType", f"{self.headers['content-type']} is not taken")
            metadata = dict(changes["metadata"])
            if metadata.pop("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
                return self._status(409, "Conflict", "Precondition failed: UID in precondition does not match UID in object meta")
            item["metadata"].setdefault("annotations", {}).update(metadata.pop("annotations", {}))
            item["metadata"].update(metadata)
            return self._json(200, self.api.put(plural, item))

    def _delete(self, plural: str, name: str, options: Resource) -> None:
        with self.api.lock:
            item = self.api.objects.get(plural, {}).get(name)
            if item is None:
                return self._status(404, "NotFound", f"{plural} {name} not found")
            if options.get("preconditions", {}).get("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
                return self._status(409, "Conflict", "the UID in the precondition does not match")
            if self.api.keep_deleted:
                item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                self.api.put(plural, item)
            else:
                self.api.remove(plural, name)
                for service in list(self.api.objects.get("services", {}).values()):
                    if any(owner["uid"] == item["metadata"]["uid"] for owner in service["metadata"].get("ownerReferences", [])):
                        self.api.remove("services", service["metadata"]["name"])
            return self._json(200, {"kind": "Status", "status": "Success"})

    def _list(self, plural: str, query: dict[str, str]) -> None:
        with self.api.lock:
            items = [item for item in self.api.objects.get(plural, {}).values() if _selected(item, query)]
            self._json(200, {"kind": "List", "metadata": {"resourceVersion": str(self.api.version)}, "items": items})

    def _watch(self, plural: str, query: dict[str, str]) -> None:
        if self.api.script:
            self.api.script.popleft()()
        self._head(200, chunked=True)
        at, end = int(query["resourceVersion"]), time.monotonic() + IDLE_SECONDS
        if at < self.api.oldest:
            self._event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})
            return self._chunk(b"")
        while True:
            with self.api.lock:
                new = [event for event in self.api.events if event[0] > at and event[1] == plural and _selected(event[3], query)]
            if self.api.cut_watches:
                self.api.cut_watches -= 1
                self._chunk(b'{"type": "MODIFIED", "obj')
                self.close_connection = True  # no last chunk: the client sees a broken stream
                return None
            for _, _, event, item in new:
                self._event(event, item)
            at = new[-1][0] if new else at
            if time.monotonic() > end:
                return self._chunk(b"")
            time.sleep(0.005)

    def _log(self, pod: str, query: dict[str, str]) -> None:
        lines = self.api.logs.get(pod, [])
        if query.get("timestamps") != "True":
            lines = [line.partition(" ")[2] for line in lines]
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :]
        following = "follow" in query
        cut = self.api.cut_logs_after.popleft() if following and self.api.cut_logs_after else None
        self._head(200, chunked=True)
        for line in lines[:cut]:
            self._chunk(line.encode() + b"\n")
        if cut is not None:
            self.close_connection = True
            return
        self._chunk(b"")

    def _event(self, event: str, item: Resource) -> None:
        self._chunk(json.dumps({"type": event, "object": item}).encode() + b"\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _status(self, code: int, reason: str, message: str) -> None:
        self._json(code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})

    def _json(self, code: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self._head(code, length=len(data))
        self.wfile.write(data)

    def _head(self, code: int, length: int | None = None, chunked: bool = False) -> None:
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header(*(("transfer-encoding", "chunked") if chunked else ("content-length", str(length))))
        self.end_headers()


def _selected(item: Resource, query: dict[str, str]) -> bool:
    """Field selectors by name and type and label selectors by equality, which is all that the launcher uses."""
    wanted = dict(part.split("=", 1) for part in query.get("fieldSelector", "").split(",") if part)
    labels = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part)
    return (
        wanted.get("metadata.name", item["metadata"]["name"]) == item["metadata"]["name"]
        and wanted.get("type", item.get("type")) == item.get("type")
        and labels.items() <= item["metadata"].get("labels", {}).items()
    )
