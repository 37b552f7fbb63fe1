"""The trace of an answer: as a page that shows what each role saw, said and searched, and as JSON."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rolecast.agent.episodes import Episodes

PRIVATE = {"Cache-Control": "private, no-store"}  # it holds what somebody asked


def add_trace_routes(app: FastAPI, name: Callable[[], str], episodes: Episodes) -> None:
    def kept(trace_id: str) -> dict[str, Any]:
        if trace_id not in episodes.traces:
            raise HTTPException(404, f"no trace {trace_id!r}: a server keeps its own last ones (--keep-traces), until it stops")
        return episodes.traces[trace_id]

    @app.get("/traces/{trace_id}.json")
    async def as_json(trace_id: str) -> JSONResponse:
        return JSONResponse(kept(trace_id), headers=PRIVATE)

    @app.get("/traces/{trace_id}")
    async def page(trace_id: str) -> HTMLResponse:
        return HTMLResponse(render_page(kept(trace_id), name()), headers=PRIVATE)


def render_page(trace: Mapping[str, Any], team: str) -> str:
    """One HTML page with everything inside, drawn by the report's own scripts."""
    roles = list(dict.fromkeys(thread["role"] for thread in trace["threads"]))
    script = "".join(map(_asset, ("dom.js", "browser.js", "trace.js")))
    return (
        _environment()
        .get_template("trace.html.jinja")
        .render(
            trace=trace,
            team=team,
            data={"roles": roles, "stages": {"serve": "Served"}, "trace": {**trace, "outcome": "unknown", "stage": "serve"}},
            style=Markup(_asset("report.css")),
            script=Markup(script),
            # The page's policy lets this one script run: what a model or a client wrote cannot.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


@cache
def _environment() -> Environment:
    loader = PackageLoader("rolecast.evaluation", "templates")
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)


@cache
def _asset(name: str) -> str:
    return (files("rolecast.evaluation") / "templates" / name).read_text(encoding="utf-8")
