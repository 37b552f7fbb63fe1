"""The middleware of every service: readiness, body limit, request id, metrics and the access log.

Plain ASGI, since Starlette's own middleware class costs a task and two queues per request.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecast.service.logs import REQUEST_ID

if TYPE_CHECKING:
    from rolecast.service.app import Service

log = logging.getLogger("rolecast.access")
ALWAYS = frozenset({"/healthz", "/readyz", "/metrics"})
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Guard:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex[:16]
        token = REQUEST_ID.set(request_id)
        begun, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        self._service.in_flight += 1
        try:
            await self._answer(scope, receive, noted)
        finally:
            self._service.in_flight -= 1
            self._note(scope, status, time.perf_counter() - begun)
            REQUEST_ID.reset(token)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, limit = self._service, self._service.max_body_bytes
        if service.status != "ready":
            detail = f"the {service.name} is {service.status}; try again"
            await JSONResponse({"detail": detail}, 503, headers={"Retry-After": "1"})(scope, receive, send)
            return
        too_large = f"the body is larger than {limit} bytes; send less at once"
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            await JSONResponse({"detail": too_large}, 413, headers={"Connection": "close"})(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:  # chunked: no length was announced
                raise HTTPException(413, too_large)
            return message

        await self._app(scope, counted, send)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")  # as declared: a path of the client's would make a series each
        self._service.requests.labels(route, str(status)).inc()
        self._service.seconds.labels(route).observe(seconds)
        if log.isEnabledFor(logging.INFO):
            fields = {"status": status, "milliseconds": round(1000 * seconds, 1)}
            log.info("%s %s", scope["method"], scope["path"], extra={"fields": fields})
