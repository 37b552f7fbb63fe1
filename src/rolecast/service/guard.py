"""The middleware of every service: tokens, readiness, body limit, request id, metrics and the access log.

Plain ASGI, since Starlette's own middleware class costs a task and two queues per request.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
import uuid
from contextlib import suppress
from typing import Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecast import spans
from rolecast.service.errors import Fault
from rolecast.service.leaving import GONE, while_connected
from rolecast.service.logs import REQUEST_ID
from rolecast.service.replies import refusal
from rolecast.service.routes import said
from rolecast.service.state import Service
from rolecast.service.tokens import CALLER

log = logging.getLogger("rolecast.access")
PROBES = frozenset({"/healthz", "/readyz"})
MONITORING = frozenset({"/metrics", "/openapi.json"})  # what may have a port of its own
ALWAYS = PROBES | {"/metrics"}
READ_AWAY = 64 * 2**20  # bytes of a refused body that are read
POLITE_SECONDS = 2.0  # that this may take
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
_PROCESS, _NUMBERS = uuid.uuid4().hex[:8], itertools.count()  # random bytes for each request cost more than reading it


class Guard:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        port = self._port_of(scope)
        if port != "all" and scope["path"] not in PROBES and (port == "metrics") != (scope["path"] in MONITORING):
            here = f"this port has {' and '.join(sorted(MONITORING))}" if port == "metrics" else "that is at --metrics-port"
            await self._refuse(
                Fault(404, f"there is no {scope['method']} {said(scope['path'])} at this port; {here}"), scope, receive, send
            )
            return
        if port == "metrics" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else f"{_PROCESS}{next(_NUMBERS):08x}"
        token, caller = REQUEST_ID.set(request_id), CALLER.set(b"")
        begun, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        self._service.in_flight += 1
        try:
            with spans.received(Headers(scope=scope).get(spans.HEADER, "")), spans.span(f"{self._service.name} answers", "server"):
                status = await self._answer(scope, receive, noted) or status
        finally:
            self._service.in_flight -= 1
            self._note(scope, status, time.perf_counter() - begun)
            REQUEST_ID.reset(token)
            CALLER.reset(caller)

    def _port_of(self, scope: Scope) -> Literal["all", "requests", "metrics"]:
        """What is answered at the port that a request came to."""
        if self._service.metrics_port is None:
            return "all"
        return "metrics" if scope["server"] and scope["server"][1] == self._service.metrics_port else "requests"

    async def _refuse(self, fault: Fault, scope: Scope, receive: Receive, send: Send, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await refusal(fault, self._service.shape_of(scope["path"]), named)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> int | None:
        """The status for metrics and log where there was no reply."""
        service, limit, headers = self._service, self._service.max_body_bytes, Headers(scope=scope)
        if scope["path"] in service.pages:  # nothing is in them that anybody said; they show what keeps a service from answering
            await self._app(scope, receive, send)
            return None
        if not self._admitted(scope, headers.get("authorization", "")):
            fault = Fault(
                401,
                f"the {service.name} takes no request without one of its tokens; send `Authorization: Bearer TOKEN`",
                code="invalid_api_key",
            )
            await self._refuse(fault, scope, receive, send, www_authenticate="Bearer", connection="close")
            return None
        if service.status != "ready":
            await self._refuse(Fault(503, f"the {service.name} is {service.status}; try again"), scope, receive, send, retry_after="1")
            return None
        too_large = f"the body is larger than {limit} bytes; send less at once"
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            polite = int(length) <= READ_AWAY and "expect" not in headers  # who expects 100 Continue has not begun to send
            await self._refuse(Fault(413, too_large), scope, receive, _reading_away(receive, send) if polite else send, connection="close")
            return None
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:  # chunked: no length was announced
                raise HTTPException(413, too_large)
            return message

        if not service.follows_callers:
            await self._app(scope, counted, send)
            return None
        return None if await while_connected(self._app, scope, counted, send) else GONE

    def _admitted(self, scope: Scope, authorization: str) -> bool:
        if self._service.tokens is None:
            return True
        caller = self._service.tokens.caller(authorization)
        CALLER.set(caller or b"")
        return caller is not None or self._service.unlocked(scope)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")  # as declared: a path of the client's would make a series each
        self._service.requests.labels(route, str(status)).inc()
        self._service.seconds.labels(route).observe(seconds)
        if log.isEnabledFor(logging.INFO):
            fields = {"status": status, "milliseconds": round(1000 * seconds, 1)}
            log.info("%s %s", scope["method"], scope["path"], extra={"fields": fields})


def _reading_away(receive: Receive, send: Send) -> Send:
    """The reply goes out at once, and ends when what the client is still sending was read: a connection that is closed before is reset, and
    the client may never see why it was refused."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            await send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(POLITE_SECONDS):
                    while (part := await receive())["type"] == "http.request" and part.get("more_body"):
                        pass
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return sent
