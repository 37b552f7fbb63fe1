"""The pages of the service: ask and watch, the list of one's traces, and a trace; the latter two as JSON too.

A trace is read by who asked, with the token of the question, or with the signed link of the reply. Pages load nothing from elsewhere,
and run one script, whose hash their policy names: what a model or a client wrote cannot run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.types import Scope

from rolecast.agent.traces import Trace, Traces
from rolecast.errors import StoreError
from rolecast.service.routes import said
from rolecast.service.tokens import CALLER

T = TypeVar("T")
ASK, LIST = "/", "/traces"
OPEN = frozenset({ASK, LIST})  # they hold nothing; what they show they ask for, with a token
HEADERS = {
    "Cache-Control": "private, no-store",  # a trace holds what somebody asked
    "Referrer-Policy": "no-referrer",  # a signed link is a key
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
CLOSED = {
    403: "This link does not open.",
    404: "There is no such trace.",
    410: "This trace is gone.",
    503: "The trace cannot be read now.",
}
SERVED = {"stages": {"serve": "Served"}}


@dataclass(frozen=True, slots=True)
class Pages:
    """`name()`: the team's, empty before it is there. `tokens`: whether callers show one. `alone`: whether only this machine is listened
    to; without tokens and not alone there is no list, since nobody could tell whose it is."""

    traces: Traces
    name: Callable[[], str]
    tokens: bool
    alone: bool
    max_characters: int


def unlocked(scope: Scope) -> bool:
    """Whether a request shows a signed link instead of a token. The route checks the signature."""
    return scope["method"] == "GET" and scope["path"].startswith(f"{LIST}/") and "signature" in QueryParams(scope["query_string"])


def add_pages(app: FastAPI, pages: Pages) -> None:
    @app.get(ASK)
    async def ask() -> HTMLResponse:
        return _page("ask", {**SERVED, "roles": [], "max_characters": pages.max_characters}, connects=True, team=pages.name())

    @app.get(LIST)
    async def listed() -> HTMLResponse:
        return _page("traces", {**SERVED, "roles": []}, connects=True, team=pages.name())

    @app.get(f"{LIST}.json")
    async def latest(before: str = "") -> JSONResponse:
        """The caller's own, newest first, 50 at a time; `before` is the id of the last one that was seen."""
        if not (pages.tokens or pages.alone):
            raise HTTPException(
                403, "without tokens nobody knows whose traces these are: serve with --tokens-file, or with --host 127.0.0.1"
            )
        return JSONResponse({"traces": await _read(pages.traces.latest(CALLER.get(), before))}, headers=HEADERS)

    @app.get(f"{LIST}/{{trace_id}}.json")
    async def as_json(trace_id: str, request: Request) -> JSONResponse:
        return JSONResponse(await _readable(pages.traces, trace_id, request.query_params), headers=HEADERS)

    @app.get(f"{LIST}/{{trace_id}}")
    async def page(trace_id: str, request: Request) -> HTMLResponse:
        try:
            trace = await _readable(pages.traces, trace_id, request.query_params)
        except HTTPException as error:
            if "text/html" not in request.headers.get("accept", ""):
                raise
            return _closed(error, pages.name())
        return render_trace(trace, pages.name(), request.url.query)


async def _readable(traces: Traces, trace_id: str, query: Mapping[str, str]) -> Trace:
    caller, linked = CALLER.get(), "signature" in query
    if linked and not traces.signed(trace_id, query):
        raise HTTPException(
            403, "this link is not whole, or its key is gone: without --traces links end with the server's process; ask again for a new one"
        )
    if not linked and not caller:
        raise HTTPException(403, "this trace is opened with its link: `trace_url` of the reply, with expiry and signature")
    if traces.over(trace_id):
        raise _gone(traces, trace_id)
    if linked and not traces.opens(trace_id, query):  # traces are kept for longer than when the link was made
        raise HTTPException(410, "this link has expired; see your list of traces for a new one, or ask again")
    kept = await _read(traces.find(trace_id))
    if kept is None and linked:
        raise _gone(traces, trace_id)
    if kept is None or not (linked or kept.owner == traces.links.owner(caller)):
        shown = said(trace_id)
        raise HTTPException(404, f"no trace {shown!r} of yours: traces are kept for --trace-days, and without --traces only the last ones")
    return kept.trace


def _gone(traces: Traces, trace_id: str) -> HTTPException:
    return HTTPException(410, f"the trace {said(trace_id)} is gone: {traces.why_gone(trace_id)}; ask the question again for a new one")


async def _read(reading: Awaitable[T]) -> T:
    try:
        return await reading
    except StoreError as error:
        raise HTTPException(503, str(error), {"Retry-After": "5"}) from None


def _closed(error: HTTPException, team: str) -> HTMLResponse:
    """For a browser: why there is no trace to see."""
    page = _page("closed", {}, connects=False, team=team, title=CLOSED[error.status_code], why=error.detail)
    page.status_code = error.status_code
    page.headers.update(error.headers or {})
    return page


def render_trace(trace: Trace, team: str, query: str = "") -> HTMLResponse:
    """`query`: what the page's link to its JSON must show."""
    roles = list(dict.fromkeys(thread["role"] for thread in trace["threads"]))
    data = {**SERVED, "roles": roles, "trace": {**trace, "outcome": "unknown", "stage": "serve"}}
    return _page("trace", data, connects=False, team=team, trace=trace, query=query)


def _page(name: str, data: Mapping[str, Any], *, connects: bool, **more: Any) -> HTMLResponse:
    """The template with everything inside, drawn by the report's own scripts. `connects`: its script asks this server for data."""
    script = _script(name)
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_hash(script)}'; "
        f"connect-src '{'self' if connects else 'none'}'; base-uri 'none'; form-action 'none'"
    )
    style = Markup(_asset("report.css") + _asset("pages.css"))
    template = _environment().get_template(f"{name}.html.jinja")
    text = template.render(data=data, style=style, script=Markup(script), policy=policy, **more)
    # What may frame a page is said by a header alone.
    return HTMLResponse(text, headers={**HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"})


@cache
def _script(name: str) -> str:
    if name == "closed":
        return ""
    own = {"trace": ("trace.js",), "ask": ("server.js", "ask.js"), "traces": ("server.js", "traces.js")}[name]
    return "".join(map(_asset, ("dom.js", "browser.js", *own)))


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    loader = PackageLoader("rolecast.evaluation", "templates")
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)


@cache
def _asset(name: str) -> str:
    return (files("rolecast.evaluation") / "templates" / name).read_text(encoding="utf-8")
