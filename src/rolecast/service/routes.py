"""What a service says of a path, or of a method, that it has no route for: what was asked, and what there is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from http import HTTPStatus
from typing import Protocol

from fastapi import FastAPI, routing
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from rolecast.service.errors import ShapeOf


class Routed(Protocol):
    """What is asked of a route, whichever FastAPI it is of."""

    @property
    def path(self) -> str | None: ...

    @property
    def methods(self) -> Collection[str] | None: ...

    @property
    def path_regex(self) -> re.Pattern[str]: ...


LONGEST = 200  # characters of a path that are said again
_IMPLIED = frozenset({"HEAD", "OPTIONS"})


def unrouted(error: HTTPException) -> bool:
    """Whether the router says so: what our routes raise has words of its own."""
    return error.status_code in (404, 405) and error.detail == HTTPStatus(error.status_code).phrase


def absent(request: Request, shape_of: ShapeOf) -> str:
    """One line. It names the routes that end alike, or else those whose clients read errors of the same shape."""
    path: str = request.scope["path"]
    routes = [route for route in _routes(request.app) if route.path and _verbs(route)]
    asked = f"there is no {request.method} {said(path)}"
    if taking := {verb for route in routes if route.path_regex.match(path) for verb in _verbs(route)}:
        return f"{asked}; this path takes {' and '.join(sorted(taking))}"
    # A prefix too few or too many is what goes wrong with a base address.
    ending = [
        route for route in routes if min(len(path), len(_path(route))) > 1 and (_path(route).endswith(path) or path.endswith(_path(route)))
    ]
    alike = ending or [route for route in routes if shape_of(_path(route)) is shape_of(path)]
    return f"{asked}; this service has {', '.join(_named(alike or routes))}"


def _routes(app: FastAPI) -> Iterable[Routed]:
    """FastAPI until 0.136, which vLLM asks for, keeps the routes of an app's routers among its own; later ones tell them where asked."""
    told = getattr(routing, "iter_route_contexts", None)
    return told(app.routes) if told else [route for route in app.routes if isinstance(route, Route)]


def _named(routes: Iterable[Routed]) -> list[str]:
    """Each once, as it is declared."""
    return list(dict.fromkeys(f"{' and '.join(sorted(_verbs(route)))} {re.sub(':[a-z]+}', '}', _path(route))}" for route in routes))


def said(path: str) -> str:
    """In one line, whatever was sent."""
    shown = path if path.isprintable() else repr(path)[1:-1]
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def _path(route: Routed) -> str:
    return route.path or ""


def _verbs(route: Routed) -> set[str]:
    return set(route.methods or ()) - _IMPLIED
