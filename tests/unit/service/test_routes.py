"""What is asked of routes, whichever FastAPI is there."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from fastapi import FastAPI, routing
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from rolecast.service import routes
from rolecast.service.errors import Fault


async def answer(request: Request) -> Response:
    return Response()


def shape(fault: Fault) -> dict[str, str]:
    return {}


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is imported where FastAPI, as vLLM asks for it, keeps an app's routes flat."""
    monkeypatch.delattr(routing, "iter_route_contexts")
    assert routes.__file__
    spec = importlib.util.spec_from_file_location("routes_of_an_older_fastapi", routes.__file__)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def request(path: str, method: str, app: FastAPI) -> Request:
    return Request({"type": "http", "method": method, "path": path, "headers": [], "app": app})


def test_routes_are_named_by_an_older_fastapi_too(older: ModuleType) -> None:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.router.routes[:] = [Route("/search/{name:path}", answer, methods=["POST"]), Route("/list", answer), Mount("/files", answer)]
    said = [
        older.absent(request(path, method, app), lambda path: shape)
        for path, method in (("/list", "POST"), ("/v1/list", "GET"), ("/x", "GET"))
    ]
    assert said == [
        "there is no POST /list; this path takes GET",
        "there is no GET /v1/list; this service has GET /list",
        "there is no GET /x; this service has POST /search/{name}, GET /list",
    ]
