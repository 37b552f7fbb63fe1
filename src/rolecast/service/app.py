"""The frame of a service: a FastAPI app with probes, metrics, request ids, limits and draining.

service = Service("retriever")
app = make_app(service, start)      # `start`: an async context manager that loads, and cleans up at the end
@app.post("/retrieve") …
serve(app, service, settings)       # rolecast.service.server
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Literal, Self

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import Scope

from rolecast.errors import InputError, RolecastError
from rolecast.service.errors import BadRequest, Fault, Overloaded, ShapeOf, always_ours
from rolecast.service.guard import Guard
from rolecast.service.replies import refusal
from rolecast.service.settings import ServiceSettings
from rolecast.service.tokens import Tokens

log = logging.getLogger(__name__)
Start = Callable[[], AbstractAsyncContextManager[None]]


class Service:
    """State and metrics of one service process. It answers while `status` is ready; probes and metrics answer always.

    `shape_of`: in which shape the clients of a path read errors. `tokens`: without them everybody may ask. `follows_callers`: what a
    request started is cancelled when its caller leaves.
    """

    def __init__(
        self, name: str, max_body_bytes: int = 8 * 2**20, *, tokens: Tokens | None = None, shape_of: ShapeOf = always_ours,
        follows_callers: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.max_body_bytes = max_body_bytes
        self.tokens, self.shape_of, self.follows_callers = tokens, shape_of, follows_callers
        self.pages: frozenset[str] = frozenset()  # paths that are answered always, and hold nothing but what everybody may see
        self.unlocked: Callable[[Scope], bool] = lambda scope: False  # requests that need no token, since their route checks them
        self.metrics_port: int | None = None  # where metrics and the schema are, if not among the other routes
        self.status: Literal["starting", "ready", "draining"] = "starting"
        self.failure: BaseException | None = None  # why it could not start: the server stops and raises it
        self.in_flight = 0
        self.draining_since = 0.0
        self.registry = CollectorRegistry()
        self.requests = Counter("rolecast_http_requests", "Requests by route and status.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram("rolecast_http_request_seconds", "Seconds to answer.", ["route"], registry=self.registry)
        Gauge("rolecast_http_in_flight", "Requests being answered.", registry=self.registry).set_function(lambda: self.in_flight)
        Gauge("rolecast_ready", "1 while requests are taken.", registry=self.registry).set_function(lambda: self.status == "ready")

    @classmethod
    def of(cls, name: str, settings: ServiceSettings, *, shape_of: ShapeOf = always_ours, follows_callers: bool = False) -> Self:
        """`InputError` if there should be tokens and are none."""
        tokens = Tokens(Path(settings.tokens_file)) if settings.tokens_file else None
        return cls(name, settings.max_body_bytes, tokens=tokens, shape_of=shape_of, follows_callers=follows_callers)

    def drain(self) -> None:
        """Takes no further request; those in flight are finished."""
        if self.status != "draining":
            log.info("draining: %d requests in flight", self.in_flight)
            self.status, self.draining_since = "draining", time.monotonic()


def make_app(service: Service, start: Start) -> FastAPI:
    """`start` is entered in the background, so that probes answer while it loads; the service is ready once it has yielded."""
    stop, begun = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        try:
            async with start():
                begun.set()
                if service.status == "starting":
                    service.status = "ready"
                    log.info("%s is ready", service.name)
                await stop.wait()
        except Exception as error:
            log.error("%s cannot serve: %s", service.name, error, exc_info=not isinstance(error, RolecastError))
            service.failure = error

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(live())
        yield
        stop.set()
        if not begun.is_set():  # stopped while it loads
            task.cancel()
        await asyncio.wait([task])

    app = FastAPI(title=f"Rolecast {service.name}", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, service=service)
    _add_probes(app, service)
    add_error_handlers(app, service.shape_of)
    return app


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        return JSONResponse({"status": service.status}, 200 if service.status == "ready" else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


def add_error_handlers(app: FastAPI, shape_of: ShapeOf = always_ours) -> None:
    """Every error is one message, in the shape that clients of the route read."""

    def reply(request: Request, fault: Fault, headers: Mapping[str, str] | None = None) -> JSONResponse:
        return refusal(fault, shape_of(request.url.path), headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
        return reply(request, Fault(400, f"{where}: {first['msg']}", where))  # without the input: it may be megabytes

    @app.exception_handler(UnicodeEncodeError)
    async def half_pair(request: Request, error: UnicodeEncodeError) -> JSONResponse:
        return reply(request, Fault(400, "a text holds half of a surrogate pair; send whole characters"))  # JSON can spell it

    @app.exception_handler(InputError)
    async def refused(request: Request, error: InputError) -> JSONResponse:
        named = error if isinstance(error, BadRequest) else BadRequest(str(error))
        return reply(request, Fault(named.status, str(error), named.param, named.code))

    @app.exception_handler(Overloaded)
    async def overloaded(request: Request, error: Overloaded) -> JSONResponse:
        return reply(request, Fault(429, str(error)), {"Retry-After": "1"})

    @app.exception_handler(HTTPException)
    async def told(request: Request, error: HTTPException) -> JSONResponse:
        return reply(request, Fault(error.status_code, str(error.detail)), error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return reply(request, Fault(500, str(error) if isinstance(error, RolecastError) else f"internal error: {type(error).__name__}"))
