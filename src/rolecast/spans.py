"""Where a question's time goes, across processes: W3C's `traceparent`, and OpenTelemetry's spans where they are switched on.

Off, which is the default, nothing of OpenTelemetry is imported by us, and a `traceparent` that came with a request goes on with what
is asked for it. On (see `service.tracing`), spans are exported as OTEL_EXPORTER_OTLP_ENDPOINT and its like say, and
each request names the span that it is made in. Spans hold counts and names of ours: no question, passage or reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

HEADER = "traceparent"
Kind = Literal["internal", "server", "client"]
Place = object  # of a span or of a request: what is begun there is its child
_FORM = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_CAME: ContextVar[str] = ContextVar("traceparent", default="")


class Tracing(Protocol):
    """What makes the spans: `opentelemetry_spans.OpenTelemetry`."""

    @contextmanager
    def span(self, name: str, kind: Kind, links: Sequence[Place], attributes: Mapping[str, str | int]) -> Iterator[None]: ...

    @contextmanager
    def at(self, place: Place) -> Iterator[None]: ...

    def place(self) -> Place: ...

    def received(self, traceparent: str) -> Place: ...

    def traceparent(self) -> str: ...


_tracing: Tracing | None = None


def use(tracing: Tracing | None) -> None:
    global _tracing
    _tracing = tracing


@contextmanager
def span(name: str, kind: Kind = "internal", links: Sequence[Place] = (), **attributes: str | int) -> Iterator[None]:
    """What is done meanwhile is a part of it. `links`: other places that it is done for."""
    if _tracing is None:
        yield
        return
    with _tracing.span(name, kind, links, attributes):
        yield


@contextmanager
def received(traceparent: str) -> Iterator[None]:
    """A request came with this header; one that has another form, or none, begins anew."""
    came = traceparent if _FORM.fullmatch(traceparent) else ""
    with at(_tracing.received(came) if _tracing is not None else came):
        yield


def place() -> Place:
    """Here, for what is done later and elsewhere: another task has other variables."""
    return _tracing.place() if _tracing is not None else _CAME.get()


@contextmanager
def at(place: Place) -> Iterator[None]:
    """As if it were done there."""
    if _tracing is not None:
        with _tracing.at(place):
            yield
        return
    token = _CAME.set(str(place))
    try:
        yield
    finally:
        _CAME.reset(token)


def headers() -> dict[str, str]:
    """What a request that is made here carries on."""
    traceparent = _tracing.traceparent() if _tracing is not None else _CAME.get()
    return {HEADER: traceparent} if traceparent else {}
