"""The reply of a service to a request that it does not answer."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse

from rolecast.service.errors import Fault, Shape


def refusal(fault: Fault, shape: Shape, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(shape(fault), fault.status, headers=dict(headers or {}))
