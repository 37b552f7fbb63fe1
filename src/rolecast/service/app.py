"""The frame of a service: a FastAPI app with probes, metrics, request ids, limits and draining.

service = Service("retriever")
app = make_app(service, start)      # `start`: an async context manager that loads, and cleans up at the end
@app.post("/retrieve") …
serve(app, service, settings)       # rolecast.service.server
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from rolecast.errors import InputError, RolecastError
from rolecast.service.errors import BadRequest, Fault, Overloaded, ShapeOf, always_ours
from rolecast.service.guard import Guard
from rolecast.service.replies import refusal
from rolecast.service.routes import absent, unrouted
from rolecast.service.state import Service

log = logging.getLogger(__name__)
Start = Callable[[], AbstractAsyncContextManager[None]]


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
        return JSONResponse({"status": service.status, **service.told}, 200 if service.status == "ready" else 503)

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
        message = absent(request, shape_of) if unrouted(error) else str(error.detail)
        return reply(request, Fault(error.status_code, message), error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return reply(request, Fault(500, str(error) if isinstance(error, RolecastError) else f"internal error: {type(error).__name__}"))
