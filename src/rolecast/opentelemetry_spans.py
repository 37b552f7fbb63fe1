"""Spans by OpenTelemetry's SDK. Imported where they are switched on, by `service.tracing`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, trace
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rolecast.formats import release
from rolecast.spans import HEADER, Kind, Place

KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class OpenTelemetry:
    """`Tracing`. What is sampled, and where spans go, the SDK reads from the environment (OTEL_…)."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("rolecast", release())
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def exporting(cls, service: str) -> OpenTelemetry:
        """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before what we say of ourselves."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        ours = Resource({SERVICE_NAME: service, SERVICE_VERSION: release()})
        provider = TracerProvider(resource=ours.merge(Resource.create()) if _named() else Resource.create().merge(ours))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    @contextmanager
    def span(self, name: str, kind: Kind, links: Sequence[Place], attributes: Mapping[str, str | int]) -> Iterator[None]:
        """An error is told by its class alone: its message may quote what was asked."""
        others = [Link(found) for place in links if (found := trace.get_current_span(_context(place)).get_span_context()).is_valid]
        started = self._tracer.start_as_current_span(
            name, kind=KINDS[kind], links=others, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        )
        with started as current:
            try:
                yield
            except BaseException as error:
                current.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        token = context.attach(_context(place))
        try:
            yield
        finally:
            context.detach(token)

    def place(self) -> Place:
        return context.get_current()

    def received(self, traceparent: str) -> Place:
        return self._propagator.extract({HEADER: traceparent}, context.Context())

    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get(HEADER, "")


def _context(place: Place) -> Any:
    return place if isinstance(place, context.Context) else context.Context()


def _named() -> bool:
    return bool(os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
