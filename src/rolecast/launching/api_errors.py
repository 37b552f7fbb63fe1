"""Errors of the API server, sorted by what can be done about them."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rolecast.launching.failure import Denied, LaunchError, Unseen

TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
UNKNOWN_USER = (401, 403)
# What Trainer's webhook says of a TrainJob's runtime that it does not know, and Kueue's.
UNSEEN = re.compile(r"must be created before the TrainJob|vtrainjob\.kb\.io.*runtime.*not found", re.IGNORECASE | re.DOTALL)


class Blip(Exception):
    """The API server did not answer, or asked for patience: the same call may succeed later."""


class Gone(Exception):
    """A watch asked for history that the server no longer has: list again."""


class Exists(Exception):
    """An object of this name exists."""


class Later(Exception):
    """Refused as things are now, for instance by a quota: no right is missing, and what is asked for may be granted later."""


class Accepted:
    """Which calls the server has let us make. An API server that starts answers 401 or 403 for a while, also to whom it knows."""

    def __init__(self) -> None:
        self._calls: set[str] = set()

    @contextmanager
    def __call__(self, call: str, what: str) -> Iterator[None]:
        """Around one call. `call`: verb and resource, to which rights are given; `what` begins the message."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            raise _sorted(error, what, known=call in self._calls) from None
        except (HTTPError, OSError, json.JSONDecodeError) as error:  # no connection, cut off, or cut off inside an event
            raise Blip(f"{what}: {error.__class__.__name__}") from None
        self._calls.add(call)


def _sorted(error: Any, what: str, known: bool) -> Exception:
    reason, message = _said(error)
    told = f"{what}: HTTP {error.status} {message}"
    if error.status == 410:
        return Gone(what)
    if error.status == 409:
        return Exists(what) if reason == "AlreadyExists" else Later(told)
    if error.status == 403 and "exceeded quota" in message:
        return Later(told)
    if UNSEEN.search(message):
        return Unseen(f"{told}; make the runtime, or leave runtime out", error.status)
    if error.status in TRANSIENT:
        return Blip(f"{what}: HTTP {error.status}")
    if error.status in UNKNOWN_USER and known:
        return Blip(f"{told}, after the same call had succeeded")
    hint = {
        401: "; the token is not accepted: log in again",
        403: "; the ServiceAccount lacks a right: see the launcher's Role",
        404: "; is the operator installed, and does the namespace exist?",
        422: "; the manifest was refused: look at `rolecast deploy render`",
    }.get(error.status)
    return Denied(f"{told}{hint}", error.status) if hint else LaunchError(told)


def _said(error: Any) -> tuple[str, str]:
    """Reason and message of the server's Status."""
    try:
        status = json.loads(error.body)
        return str(status.get("reason") or ""), str(status["message"])
    except (TypeError, ValueError, KeyError, AttributeError):
        return "", str(error.reason)
