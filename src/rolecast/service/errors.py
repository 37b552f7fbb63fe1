"""What a service raises when it cannot answer, and the shape in which each protocol's clients read why.

400 is bad input, 401 a missing or wrong token, 404 what is not there, 429 that too much is waiting, 503 that it is not ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rolecast.errors import InputError, RolecastError


class Overloaded(RolecastError):
    """More is waiting than the service takes on; the client should try again (429)."""


class BadRequest(InputError):
    """`param`: the key of the request that is at fault. `code`: OpenAI's word for the fault, where it has one."""

    status = 400

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class NotFound(BadRequest):
    """What the request names is not there (404)."""

    status = 404


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a request has no answer."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


Shape = Callable[[Fault], dict[str, Any]]
ShapeOf = Callable[[str], Shape]  # by the path of the request
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def ours(fault: Fault) -> dict[str, Any]:
    return {"detail": fault.message}


def openai(fault: Fault) -> dict[str, Any]:
    kind = _TYPES.get(fault.status, "server_error" if fault.status >= 500 else "invalid_request_error")
    return {"error": {"message": fault.message, "type": kind, "param": fault.param, "code": fault.code}}


def kserve(fault: Fault) -> dict[str, Any]:
    return {"error": fault.message}


def always_ours(path: str) -> Shape:
    return ours


def said(body: object) -> str | None:
    """The message of an error in any of these shapes; None for a body of another one."""
    if not isinstance(body, Mapping):
        return None
    found = body.get("error", body.get("detail"))
    if isinstance(found, Mapping):
        found = found.get("message")
    return None if found is None else str(found)
